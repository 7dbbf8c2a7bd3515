#include "server/engine/generate_mapping.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

namespace engine = vllm::grpc::engine;
using ::google::protobuf::TextFormat;
using ::google::protobuf::util::MessageDifferencer;

constexpr char kIds[] = "tokenized { input_ids: 7 } ";
constexpr char kPublicIds[] = "token_ids { ids: 7 } ";
constexpr char kDraw[] = "sampling { temperature: 1 } ";
constexpr char kFill[] = "stop { fill_context: true } ";

engine::GenerateRequest EngineRequest(const std::string& text) {
  engine::GenerateRequest request;
  EXPECT_TRUE(TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

v1::GenerateRequest Public(const std::string& text) {
  v1::GenerateRequest request;
  EXPECT_TRUE(TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

// What becomes of a field.
struct Case {
  std::string field;    // its path
  std::string request;  // text of a request that has it; ids are there besides
  std::string becomes;  // text of the public request; empty: it is refused by its name
};

std::string Ids(const std::string& sampling, const std::string& stop, const std::string& more = "") {
  return absl::StrCat(kPublicIds, "sampling { temperature: 1 ", sampling, " } stop { ", stop, " } ", more);
}
Case Drawn(const std::string& field, const std::string& value, const std::string& sampling) {
  return {"sampling_params." + field, absl::StrCat(kIds, "sampling_params { ", field, value, " }"),
          Ids(sampling, "fill_context: true")};
}
Case Stopped(const std::string& field, const std::string& value, const std::string& stop) {
  return {"sampling_params." + field, absl::StrCat(kIds, "sampling_params { ", field, value, " }"), Ids("", stop)};
}
Case Else(const std::string& field, const std::string& value, const std::string& more) {
  return {"sampling_params." + field, absl::StrCat(kIds, "sampling_params { ", field, value, " }"),
          Ids("", "fill_context: true", more)};
}
Case Refused(const std::string& field, const std::string& request) {
  return {field, absl::StrCat(kIds, request), ""};
}
// It changes nothing of what is drawn. `why` is for who reads this.
Case Harmless(const std::string& field, const std::string& request, const char* /*why*/) {
  return {field, absl::StrCat(kIds, request), absl::StrCat(kPublicIds, kDraw, kFill)};
}

std::vector<Case> Cases() {
  return {
      {"request_id", absl::StrCat(kIds, "request_id: 'mine'"),
       absl::StrCat("request_id: 'mine' ", kPublicIds, kDraw, kFill)},
      {"tokenized", kIds, absl::StrCat(kPublicIds, kDraw, kFill)},
      {"tokenized.input_ids", "tokenized { input_ids: [1, 2, 3] }",
       absl::StrCat("token_ids { ids: [1, 2, 3] } ", kDraw, kFill)},
      {"tokenized.original_text", "tokenized { input_ids: 7 original_text: 'abc' }",
       absl::StrCat(kPublicIds, kDraw, kFill)},  // the ids were made of it
      {"text", "text: 'once'", absl::StrCat("prompt: 'once' ", kDraw, kFill)},
      Harmless("sampling_params", "sampling_params {}", "its fields are below"),
      Harmless("stream", "stream: true", "it is of the answer"),
      Refused("kv_transfer_params", "kv_transfer_params {}"),
      Refused("mm_inputs", "mm_inputs {}"),
      Refused("kv_transfer_params_json", "kv_transfer_params_json: '{}'"),
      Refused("data_parallel_rank", "data_parallel_rank: 1"),
      Harmless("data_parallel_rank", "data_parallel_rank: 0", "it is the only one"),
      Refused("media_refs", "media_refs {}"),
      Refused("extra_mm_inputs", "extra_mm_inputs {}"),
      {"sampling_params.temperature", absl::StrCat(kIds, "sampling_params { temperature: 0 }"),
       absl::StrCat(kPublicIds, "sampling { temperature: 0 } ", kFill)},
      Drawn("top_p", ": 0.5", "top_p: 0.5"),
      Drawn("top_k", ": 40", "top_k: 40"),
      Refused("sampling_params.top_k", "sampling_params { top_k: 4294967295 }"),
      Drawn("min_p", ": 0.25", "min_p: 0.25"),
      Drawn("frequency_penalty", ": -1.5", "frequency_penalty: -1.5"),
      Drawn("presence_penalty", ": 0.5", "presence_penalty: 0.5"),
      Drawn("repetition_penalty", ": 1.25", "repetition_penalty: 1.25"),
      Drawn("seed", ": 42", "seed: 42"),
      Drawn("seed", ": 0", "seed: 0"),
      Harmless("sampling_params.seed", "sampling_params { seed: -1 }", "it is none"),
      Drawn("seed", ": -2", "seed: 18446744073709551614"),
      Drawn("logprobs", ": 0", "logprobs: 0"),
      Drawn("logit_bias", " { key: 3 value: -2.5 }", "logit_bias { key: 3 value: -2.5 }"),
      Stopped("max_tokens", ": 5", "max_tokens: 5"),
      Stopped("max_tokens", ": 0", "max_tokens: 0"),
      Stopped("min_tokens", ": 2", "fill_context: true min_tokens: 2"),
      Stopped("stop", ": ['a', 'b']", "fill_context: true stop: ['a', 'b']"),
      Stopped("stop_token_ids", ": [4, 5]", "fill_context: true stop_ids: [4, 5]"),
      Stopped("ignore_eos", ": true", "fill_context: true ignore_eos: true"),
      Harmless("sampling_params.skip_special_tokens", "sampling_params { skip_special_tokens: true }", "of text"),
      Harmless("sampling_params.spaces_between_special_tokens",
               "sampling_params { spaces_between_special_tokens: true }", "of text"),
      Harmless("sampling_params.include_stop_str_in_output", "sampling_params { include_stop_str_in_output: true }",
               "of text: the ids of an answer have its end in any case"),
      Harmless("sampling_params.grammar_from_first_token", "sampling_params { grammar_from_first_token: true }",
               "a form holds from there in any case"),
      Else("n", ": 3", "n: 3"),
      Harmless("sampling_params.n", "sampling_params { n: 1 }", "one answer comes unasked"),
      Else("prompt_logprobs", ": 2", "prompt_logprobs: 2"),
      Else("truncate_prompt_tokens", ": 9", "truncate_prompt: 9"),
      Else("json_schema", ": '{}'", "structure { json_schema: '{}' }"),
      Else("regex", ": 'a+'", "structure { regex: 'a+' }"),
      Else("grammar", ": 'root ::= \"a\"'", "structure { grammar: 'root ::= \"a\"' }"),
      Refused("sampling_params.structural_tag", "sampling_params { structural_tag: 'x' }"),
      Else("json_object", ": true", "structure { json_object: true }"),
      Harmless("sampling_params.json_object", "sampling_params { json_object: false }", "no form is asked for"),
      Else("choice", " { choices: ['a', 'b'] }", "structure { choice { texts: ['a', 'b'] } }"),
  };
}

void AddFields(const google::protobuf::Descriptor& type, const std::string& prefix, std::set<std::string>& out) {
  for (int i = 0; i < type.field_count(); ++i) out.insert(prefix + type.field(i)->name());
}

TEST(GenerateMapping, EveryFieldIsMappedOrRefusedByItsNameOrChangesNothing) {
  for (const Case& of : Cases()) {
    SCOPED_TRACE(of.request);
    engine::GenerateRequest request = EngineRequest(of.request);
    const absl::StatusOr<v1::GenerateRequest> mapped = ToPublicRequest(request);
    if (of.becomes.empty()) {
      EXPECT_EQ(mapped.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(BlamedField(mapped.status()), of.field);
      continue;
    }
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    EXPECT_TRUE(MessageDifferencer::Equals(*mapped, Public(of.becomes))) << mapped->ShortDebugString();
  }
}

TEST(GenerateMapping, NoFieldIsForgotten) {
  std::set<std::string> all, known;
  AddFields(*engine::GenerateRequest::descriptor(), "", all);
  AddFields(*engine::TokenizedInput::descriptor(), "tokenized.", all);
  AddFields(*engine::SamplingParams::descriptor(), "sampling_params.", all);
  for (const Case& of : Cases()) known.insert(of.field);
  EXPECT_EQ(known, all);
}

TEST(GenerateMapping, RefusesARequestWithoutInputAndIdsBeyondOurs) {
  engine::GenerateRequest none;
  EXPECT_EQ(BlamedField(ToPublicRequest(none).status()), "tokenized");
  for (const char* const field : {"max_tokens", "min_tokens", "stop_token_ids", "n"}) {
    engine::GenerateRequest request = EngineRequest(absl::StrCat(kIds, "sampling_params { ", field, ": 4000000000 }"));
    EXPECT_EQ(BlamedField(ToPublicRequest(request).status()), absl::StrCat("sampling_params.", field));
  }
  engine::GenerateRequest ids = EngineRequest("tokenized { input_ids: [1, 2147483648] }");
  EXPECT_EQ(BlamedField(ToPublicRequest(ids).status()), "tokenized.input_ids");
}

}  // namespace
}  // namespace runahead
