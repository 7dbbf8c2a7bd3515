#include "server/router/validation.h"

#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const ModelInfo kModel{"tiny", "0123456789abcdef", 1000, 320, "Tiny-v2.Q4_1"};

v1::GenerateRequest Good() {
  v1::GenerateRequest request;
  request.set_prompt("Hello");
  return request;
}

struct Bad {
  const char* message;
  std::function<void(v1::GenerateRequest&)> spoil;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

class ValidateRequestRefuses : public ::testing::TestWithParam<Bad> {};

TEST_P(ValidateRequestRefuses, NamingFieldAndLimit) {
  v1::GenerateRequest request = Good();
  GetParam().spoil(request);
  const absl::Status status = ValidateRequest(request, kModel, /*experiments=*/true);
  EXPECT_EQ(status.code(), GetParam().code);
  EXPECT_THAT(std::string(status.message()), StartsWith(GetParam().message));
  const std::string field(GetParam().message, std::string(GetParam().message).find(':'));
  EXPECT_EQ(BlamedField(status), field);
}

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();
using R = v1::GenerateRequest;

INSTANTIATE_TEST_SUITE_P(
    Input, ValidateRequestRefuses,
    ::testing::Values(Bad{"prompt: one of prompt, chat and token_ids must be given", [](R& r) { r.clear_prompt(); }},
                      Bad{"prompt: it is empty", [](R& r) { r.set_prompt(""); }},
                      Bad{"model: \"other\" is not served here; this router serves \"tiny\" (or \"Tiny-v2.Q4_1\")",
                          [](R& r) { r.set_model("other"); }, absl::StatusCode::kNotFound},
                      Bad{"chat.messages: at least one", [](R& r) { r.mutable_chat(); }},
                      Bad{"chat.messages[1].role: it is not system, developer, user, assistant or tool",
                          [](R& r) {
                            r.mutable_chat()->add_messages()->set_role("user");
                            r.mutable_chat()->add_messages()->set_role("narrator");
                          }},
                      Bad{"chat.tools: it is a dict, not a JSON array",
                          [](R& r) {
                            r.mutable_chat()->add_messages()->set_role("user");
                            r.mutable_chat()->set_tools("{}");
                          }},
                      Bad{"chat.template_variables: it is not JSON at byte",
                          [](R& r) {
                            r.mutable_chat()->add_messages()->set_role("user");
                            r.mutable_chat()->set_template_variables("{");
                          }},
                      Bad{"chat.messages[0].tool_calls: it is not JSON at byte",
                          [](R& r) {
                            r.mutable_chat()->add_messages()->set_role("assistant");
                            r.mutable_chat()->mutable_messages(0)->set_tool_calls("");
                          }},
                      Bad{"model: \"a\\n\\x1b[31mmod\u00e8le\" is not served",
                          [](R& r) { r.set_model("a\n\x1b[31mmod\u00e8le"); }, absl::StatusCode::kNotFound},
                      Bad{"model: \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\" is",
                          [](R& r) { r.set_model(std::string(1000, 'x')); }, absl::StatusCode::kNotFound},
                      Bad{"token_ids.ids: at least one", [](R& r) { r.mutable_token_ids(); }},
                      Bad{"token_ids.ids[1]: 320 is not in [0, 320)",
                          [](R& r) {
                            r.mutable_token_ids()->add_ids(319);
                            r.mutable_token_ids()->add_ids(320);
                          },
                          absl::StatusCode::kOutOfRange},
                      Bad{"token_ids.ids[0]: -1 is not in", [](R& r) { r.mutable_token_ids()->add_ids(-1); },
                          absl::StatusCode::kOutOfRange},
                      Bad{"request_id: 129 characters", [](R& r) { r.set_request_id(std::string(129, 'a')); }},
                      Bad{"request_id: only printable", [](R& r) { r.set_request_id("a\nb"); }},
                      Bad{"experiment.width: 0 is not at least 1", [](R& r) { r.mutable_experiment()->set_width(0); }},
                      Bad{"experiment.schedule: 99",
                          [](R& r) { r.mutable_experiment()->set_schedule(v1::Schedule(99)); }}));

INSTANTIATE_TEST_SUITE_P(
    Sampling, ValidateRequestRefuses,
    ::testing::Values(
        Bad{"sampling.temperature: -0.5 is not in [0, 100]",
            [](R& r) { r.mutable_sampling()->set_temperature(-0.5f); }},
        Bad{"sampling.temperature: nan", [](R& r) { r.mutable_sampling()->set_temperature(kNan); }},
        Bad{"sampling.temperature: inf", [](R& r) { r.mutable_sampling()->set_temperature(kInf); }},
        Bad{"sampling.top_k: -1 is not", [](R& r) { r.mutable_sampling()->set_top_k(-1); }},
        Bad{"sampling.top_p: 1.5 is not in (0, 1]", [](R& r) { r.mutable_sampling()->set_top_p(1.5f); }},
        Bad{"sampling.top_p: 0 is not in (0, 1]", [](R& r) { r.mutable_sampling()->set_top_p(0); }},
        Bad{"sampling.top_p: nan", [](R& r) { r.mutable_sampling()->set_top_p(kNan); }},
        Bad{"sampling.min_p: 1 is not in [0, 1)", [](R& r) { r.mutable_sampling()->set_min_p(1); }},
        Bad{"sampling.min_p: nan", [](R& r) { r.mutable_sampling()->set_min_p(kNan); }},
        Bad{"sampling.repetition_penalty: 0 is not", [](R& r) { r.mutable_sampling()->set_repetition_penalty(0); }},
        Bad{"sampling.repetition_penalty: nan", [](R& r) { r.mutable_sampling()->set_repetition_penalty(kNan); }},
        Bad{"sampling.presence_penalty: 2.5 is", [](R& r) { r.mutable_sampling()->set_presence_penalty(2.5f); }},
        Bad{"sampling.frequency_penalty: -inf", [](R& r) { r.mutable_sampling()->set_frequency_penalty(-kInf); }},
        Bad{"sampling.logprobs: 21 is not in [0, 20]", [](R& r) { r.mutable_sampling()->set_logprobs(21); }},
        Bad{"sampling.logit_bias: 320 is not in [0, 320)",
            [](R& r) { (*r.mutable_sampling()->mutable_logit_bias())[320] = 1; }, absl::StatusCode::kOutOfRange},
        Bad{"sampling.logit_bias: -1 is not in [0, 320)",
            [](R& r) { (*r.mutable_sampling()->mutable_logit_bias())[-1] = 1; }, absl::StatusCode::kOutOfRange},
        Bad{"sampling.logit_bias[7]: 100.5 is not in [-100, 100]",
            [](R& r) { (*r.mutable_sampling()->mutable_logit_bias())[7] = 100.5f; }},
        Bad{"sampling.logit_bias[7]: nan", [](R& r) { (*r.mutable_sampling()->mutable_logit_bias())[7] = kNan; }},
        Bad{"sampling.logit_bias: 1025 ids are more than 1024", [](R& r) {
              for (int i = 0; i < 1025; ++i) (*r.mutable_sampling()->mutable_logit_bias())[i] = 1;
            }}));

INSTANTIATE_TEST_SUITE_P(
    Request, ValidateRequestRefuses,
    ::testing::Values(Bad{"timeout_s: 0 is not above 0 and finite", [](R& r) { r.set_timeout_s(0); }},
                      Bad{"timeout_s: -1 is", [](R& r) { r.set_timeout_s(-1); }},
                      Bad{"timeout_s: nan is", [](R& r) { r.set_timeout_s(kNan); }},
                      Bad{"timeout_s: inf is", [](R& r) { r.set_timeout_s(kInf); }},
                      Bad{"truncate_prompt: 0 is not at least 1", [](R& r) { r.set_truncate_prompt(0); }},
                      Bad{"n: 0 is not in [1, 64]", [](R& r) { r.set_n(0); }},
                      Bad{"n: 65 is not in [1, 64]", [](R& r) { r.set_n(65); }},
                      Bad{"output_ids: they are of one answer, and n is 2",
                          [](R& r) {
                            r.set_n(2);
                            r.add_output_ids(5);
                          }},
                      Bad{"user: 129 characters are more than 128", [](R& r) { r.set_user(std::string(129, 'a')); }},
                      Bad{"user: only printable ASCII", [](R& r) { r.set_user("\u00e9"); }}));

INSTANTIATE_TEST_SUITE_P(
    Stop, ValidateRequestRefuses,
    ::testing::Values(Bad{"stop.max_tokens: 0 is not at least 1", [](R& r) { r.mutable_stop()->set_max_tokens(0); }},
                      Bad{"stop.stop: 17 strings are more than 16",
                          [](R& r) {
                            for (int i = 0; i < 17; ++i) r.mutable_stop()->add_stop(std::string(1, 'x'));
                          }},
                      Bad{"stop.stop[1]: 0 bytes are not in [1, 256]",
                          [](R& r) {
                            r.mutable_stop()->add_stop(std::string(1, 'x'));
                            r.mutable_stop()->add_stop(std::string());
                          }},
                      Bad{"stop.stop[0]: 257 bytes", [](R& r) { r.mutable_stop()->add_stop(std::string(257, 'x')); }},
                      Bad{"stop.min_tokens: -1 is not at least 0", [](R& r) { r.mutable_stop()->set_min_tokens(-1); }},
                      Bad{"stop.min_tokens: 6 is more than max_tokens, which is 5",
                          [](R& r) {
                            r.mutable_stop()->set_max_tokens(5);
                            r.mutable_stop()->set_min_tokens(6);
                          }},
                      Bad{"stop.bad_words: 65 strings are more than 64",
                          [](R& r) {
                            for (int i = 0; i < 65; ++i) r.mutable_stop()->add_bad_words("x");
                          }},
                      Bad{"stop.bad_words[1]: 0 bytes are not in [1, 256]",
                          [](R& r) {
                            r.mutable_stop()->add_bad_words("x");
                            r.mutable_stop()->add_bad_words("");
                          }},
                      Bad{"stop.stop_ids: 65 ids are more than 64",
                          [](R& r) {
                            for (int i = 0; i < 65; ++i) r.mutable_stop()->add_stop_ids(1);
                          }},
                      Bad{"stop.stop_ids[0]: 320 is not in [0, 320)", [](R& r) { r.mutable_stop()->add_stop_ids(320); },
                          absl::StatusCode::kOutOfRange}));

TEST(ValidateModel, TakesNameAndFileNameInAnyCase) {
  for (const char* name : {"", "tiny", "TINY", "Tiny-v2.Q4_1", "tiny-V2.q4_1"}) {
    EXPECT_TRUE(ValidateModel(name, kModel).ok()) << name;
  }
  for (const char* name : {"tin", "tiny ", "tiny-v2", "Tiny-v2.Q4_1.gguf"}) {
    EXPECT_EQ(ValidateModel(name, kModel).code(), absl::StatusCode::kNotFound) << name;
  }
  const ModelInfo without_alias{"tiny", "0123456789abcdef", 1000, 320};
  EXPECT_TRUE(ValidateModel("Tiny", without_alias).ok());
  EXPECT_THAT(std::string(ValidateModel("other", without_alias).message()), ::testing::EndsWith("serves \"tiny\""));
}

TEST(ValidateRequest, AcceptsTheEndsOfEveryRange) {
  v1::GenerateRequest request = Good();
  request.set_model("tiny");
  request.set_request_id(std::string(128, '~'));
  v1::SamplingParams& s = *request.mutable_sampling();
  s.set_temperature(100);
  s.set_top_k(0);
  s.set_top_p(1);
  s.set_min_p(0);
  s.set_repetition_penalty(10);
  s.set_presence_penalty(-2);
  s.set_frequency_penalty(2);
  s.set_logprobs(20);
  for (int i = 0; i < 16; ++i) request.mutable_stop()->add_stop(std::string(256, 'x'));
  request.mutable_stop()->add_stop_ids(319);
  request.mutable_stop()->set_max_tokens(1);
  request.mutable_stop()->set_min_tokens(1);
  for (int i = 0; i < 64; ++i) request.mutable_stop()->add_bad_words(std::string(256, 'x'));
  (*s.mutable_logit_bias())[0] = -100;
  (*s.mutable_logit_bias())[319] = 100;
  request.set_timeout_s(1e-9);
  request.set_truncate_prompt(1);
  request.set_n(64);
  request.set_user(std::string(128, ' '));
  EXPECT_TRUE(ValidateRequest(request, kModel, false).ok());
}

TEST(ValidateRequest, RefusesExperimentsWhereTheyAreOff) {
  v1::GenerateRequest request = Good();
  request.mutable_experiment();
  EXPECT_TRUE(ValidateRequest(request, kModel, true).ok());
  const absl::Status status = ValidateRequest(request, kModel, false);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "experiment: this router runs without --experiments");
}

TEST(ResolveMaxTokens, TakesWhatTheContextLeaves) {
  v1::GenerateRequest request = Good();
  EXPECT_EQ(*ResolveMaxTokens(request, 10, {"", "", 4096, 320}), 1024);
  EXPECT_EQ(*ResolveMaxTokens(request, 900, kModel), 100);
  EXPECT_EQ(*ResolveMaxTokens(request, 999, kModel), 1);
  request.mutable_stop()->set_fill_context(true);
  EXPECT_EQ(*ResolveMaxTokens(request, 10, {"", "", 4096, 320}), 4086);
  request.mutable_stop()->set_max_tokens(100);
  EXPECT_EQ(*ResolveMaxTokens(request, 900, kModel), 100);
}

TEST(ResolveMaxTokens, NamesTheNumbersWhenTheContextIsTooShort) {
  v1::GenerateRequest request = Good();
  EXPECT_EQ(ResolveMaxTokens(request, 0, kModel).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ResolveMaxTokens(request, 1000, kModel).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(ResolveMaxTokens(request, 1000, kModel).status().message(), HasSubstr("prompt: 1000 tokens"));
  request.mutable_stop()->set_max_tokens(101);
  const absl::Status status = ResolveMaxTokens(request, 900, kModel).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), StartsWith("stop.max_tokens: 101"));
  EXPECT_THAT(status.message(), HasSubstr("at most 100 are left"));
}

TEST(CheckTokens, NamesATokenThatTheModelHasNoRowFor) {
  EXPECT_TRUE(CheckTokens("prompt", {0, 319}, kModel).ok());
  const absl::Status status = CheckTokens("prompt", {0, 320, 1}, kModel);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(), "prompt: its token 320 is none of the 320 that the model has");
  EXPECT_EQ(BlamedField(status), "prompt");
}

TEST(ResolveChain, PartsAndWidthOverrideTheRoutersSchedule) {
  v1::GenerateRequest request = Good();
  EXPECT_EQ(ResolveChain(request, 9, Schedule::kSingle).schedule, Schedule::kSingle);
  request.mutable_experiment()->add_parts(4);
  request.mutable_experiment()->add_parts(5);
  const ChainRequest chain = ResolveChain(request, 9, Schedule::kSingle);
  EXPECT_EQ(chain.schedule, Schedule::kKvr);
  EXPECT_EQ(chain.parts, (std::vector<int64_t>{4, 5}));
  const absl::Status status = CheckChain(ResolveChain(request, 10, Schedule::kKvr), 4);
  EXPECT_EQ(status.message(), "experiment.parts: 4,5 add up to 9; the prompt has 10 tokens");
  EXPECT_EQ(BlamedField(status), "experiment.parts");
}

TEST(ResolveChain, TakesEveryScheduleByName) {
  v1::GenerateRequest request = Good();
  for (const auto& [asked, schedule] :
       std::vector<std::pair<v1::Schedule, Schedule>>{{v1::SCHEDULE_KVR, Schedule::kKvr},
                                                      {v1::SCHEDULE_KVR_EVEN, Schedule::kKvrEven},
                                                      {v1::SCHEDULE_SINGLE, Schedule::kSingle},
                                                      {v1::SCHEDULE_TSP, Schedule::kTsp},
                                                      {v1::SCHEDULE_TSP_CAUSAL, Schedule::kTspCausal}}) {
    request.mutable_experiment()->set_schedule(asked);
    EXPECT_EQ(ResolveChain(request, 9, Schedule::kKvr).schedule, schedule);
    EXPECT_TRUE(ValidateRequest(request, kModel, true).ok());
    EXPECT_EQ(BlamedField(ValidateRequest(request, kModel, false)), "experiment");
  }
}

}  // namespace
}  // namespace runahead
