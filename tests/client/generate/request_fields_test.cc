// Every field of GenerateRequest, and how who has no gRPC client sets it: the flag of `runahead generate`, and the
// member of a body at the OpenAI door. A field that does not stand here makes this red.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/generate/generate_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/calls.h"

namespace runahead {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

struct RequestField {
  std::string name;
  std::vector<std::string> flag;  // with a value; empty: there is none
  std::string no_flag;            // why
  std::string member;             // a body with it; empty: there is none
  std::string no_member;          // why
  bool chat = false;              // the body is a chat's
};

constexpr char kGrpcOnly[] = "it is for programs that speak gRPC";

const std::vector<RequestField>& Fields() {
  static const auto& fields = *new std::vector<RequestField>{
      {"model", {"--model", "m"}, "", R"("model":"m")", ""},
      {"prompt", {"--prompt", "p"}, "", R"("prompt":"p")", ""},
      {"chat", {"--message", "user:Hi"}, "", R"("messages":[{"role":"user","content":"Hi"}])", "", true},
      {"token_ids", {"--token-ids", "1,2"}, "", R"("prompt":[1,2])", ""},
      {"sampling.temperature", {"--temperature", "0.5"}, "", R"("temperature":0.5)", ""},
      {"sampling.top_k", {"--top-k", "5"}, "", R"("top_k":5)", ""},
      {"sampling.top_p", {"--top-p", "0.5"}, "", R"("top_p":0.5)", ""},
      {"sampling.min_p", {"--min-p", "0.5"}, "", R"("min_p":0.5)", ""},
      {"sampling.repetition_penalty", {"--repetition-penalty", "1.5"}, "", R"("repetition_penalty":1.5)", ""},
      {"sampling.presence_penalty", {"--presence-penalty", "1"}, "", R"("presence_penalty":1)", ""},
      {"sampling.frequency_penalty", {"--frequency-penalty", "1"}, "", R"("frequency_penalty":1)", ""},
      {"sampling.seed", {"--seed", "7"}, "", R"("seed":7)", ""},
      {"sampling.logprobs", {"--logprobs", "3"}, "", R"("logprobs":3)", ""},
      {"sampling.logit_bias", {"--logit-bias", "5=-100"}, "", R"("logit_bias":{"5":-100})", ""},
      {"stop.max_tokens", {"--max-tokens", "9"}, "", R"("max_tokens":9)", ""},
      {"stop.stop", {"--stop", "END"}, "", R"("stop":"END")", ""},
      {"stop.stop_ids", {"--stop-id", "7"}, "", R"("stop_token_ids":[7])", ""},
      {"stop.ignore_eos", {"--ignore-eos"}, "", R"("ignore_eos":true)", ""},
      {"stop.fill_context", {}, "--max-tokens says it", R"("messages":[{"role":"user","content":"Hi"}])", "", true},
      {"stop.min_tokens", {"--min-tokens", "3"}, "", R"("min_tokens":3)", ""},
      {"stop.bad_words", {"--bad-word", "oh"}, "", R"("bad_words":["oh"])", ""},
      {"experiment", {"--width", "2"}, "", "", "experiments are measured by gRPC"},
      {"request_id", {}, "the router makes one, and the answer says it", "", "the router makes one: see `runahead`"},
      {"priority", {"--priority", "low"}, "", R"("priority":1)", ""},
      {"output_ids", {}, kGrpcOnly, "", kGrpcOnly},
      {"no_cache", {"--no-cache"}, "", "", "nobody there has asked for it"},
      {"structure", {"--regex", "a+"}, "", R"("structured_outputs":{"regex":"a+"})", ""},
      {"timeout_s", {}, "--timeout is the deadline of its call", R"("timeout":2.5)", ""},
      {"truncate_prompt", {"--truncate-prompt", "5"}, "", R"("truncate_prompt_tokens":5)", ""},
      {"user", {"--user", "me"}, "", R"("user":"me")", ""},
      {"n", {"--n", "3"}, "", R"("n":3)", ""},
      {"prompt_logprobs", {"--prompt-logprobs", "2"}, "", R"("echo":true,"logprobs":2)", ""},
  };
  return fields;
}

// Flags that set no field.
const std::set<std::string>& OtherFlags() {
  static const auto& flags = *new std::set<std::string>{
      "--help", "--api-key", "--router", "--tls", "--tls-ca", "--tls-cert", "--tls-key", "--tls-server-name",
      "--timeout", "--tenant", "--json", "--trace",
      // More of a field that stands above: other inputs, forms, parts of a chat and of an experiment.
      "--prompt-file", "--tools", "--template-variable", "--parts", "--schedule", "--json-schema", "--json-object",
      "--grammar", "--choice"};
  return flags;
}

bool IsOpen(const FieldDescriptor& field) {
  return field.name() == "sampling" || field.name() == "stop";
}

void AddNames(const google::protobuf::Descriptor& message, const std::string& before, std::set<std::string>& names) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string name = absl::StrCat(before, std::string(field.name()));
    if (before.empty() && IsOpen(field)) {
      AddNames(*field.message_type(), absl::StrCat(name, "."), names);
    } else {
      names.insert(name);
    }
  }
}

bool IsSet(const Message& message, const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 1));
  const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(parts[0]);
  if (field == nullptr) return false;
  if (parts.size() > 1) return IsSet(message.GetReflection()->GetMessage(message, field), parts[1]);
  if (field->is_repeated()) return message.GetReflection()->FieldSize(message, field) > 0;
  return message.GetReflection()->HasField(message, field);
}

// Parsed flags and the help that lists them.
struct Cli {
  CLI::App app;
  GenerateFlags flags;
  Cli() { flags.AddTo(app); }
};

TEST(RequestFields, EachStandsInTheTableOnce) {
  std::set<std::string> names;
  AddNames(*v1::GenerateRequest::descriptor(), "", names);
  std::vector<std::string> listed;
  for (const RequestField& field : Fields()) {
    listed.push_back(field.name);
    EXPECT_NE(field.flag.empty(), field.no_flag.empty()) << field.name << ": a flag, or why there is none";
    EXPECT_NE(field.member.empty(), field.no_member.empty()) << field.name << ": a member, or why there is none";
  }
  EXPECT_THAT(listed, ::testing::UnorderedElementsAreArray(names));
}

TEST(RequestFields, EachIsSetByItsFlag) {
  for (const RequestField& field : Fields()) {
    if (field.flag.empty()) continue;
    std::vector<std::string> args = {"runahead", "--router", "127.0.0.1:1"};
    const bool is_input = field.name == "prompt" || field.name == "chat" || field.name == "token_ids";
    if (!is_input) args.insert(args.end(), {"--prompt", "p"});
    args.insert(args.end(), field.flag.begin(), field.flag.end());
    std::vector<const char*> argv;
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    Cli cli;
    ASSERT_NO_THROW(cli.app.parse(static_cast<int>(argv.size()), argv.data())) << field.name;
    const auto request = cli.flags.Request();
    ASSERT_TRUE(request.ok()) << field.name << ": " << request.status();
    EXPECT_TRUE(IsSet(*request, field.name)) << field.name;
  }
}

TEST(RequestFields, TheHelpHasNoFlagThatIsNotKnownHere) {
  std::set<std::string> known = OtherFlags(), listed;
  for (const RequestField& field : Fields()) {
    if (!field.flag.empty()) known.insert(field.flag[0]);
  }
  Cli cli;
  for (const CLI::Option* option : cli.app.get_options()) {
    for (const std::string& name : option->get_lnames()) listed.insert(absl::StrCat("--", name));
  }
  const std::string help = cli.app.help();
  for (const std::string& flag : listed) {
    EXPECT_TRUE(known.contains(flag)) << flag << ": which field does it set?";
    EXPECT_TRUE(absl::StrContains(help, flag)) << flag << " is not in the help";
  }
  for (const RequestField& field : Fields()) {
    EXPECT_TRUE(field.flag.empty() || listed.contains(field.flag[0])) << field.name;
  }
}

TEST(RequestFields, EachIsSetByItsMemberAtTheDoor) {
  for (const RequestField& field : Fields()) {
    if (field.member.empty()) continue;
    const bool has_prompt = absl::StrContains(field.member, "\"prompt\"");
    const std::string body = absl::StrCat("{", field.chat || has_prompt ? "" : "\"prompt\":\"p\",", field.member, "}");
    const auto calls = field.chat ? ReadChatRequest(body, {}) : ReadCompletionRequest(body, {});
    ASSERT_TRUE(calls.ok()) << field.name << ": " << calls.status();
    EXPECT_TRUE(calls->ignored.empty()) << field.name;
    ASSERT_EQ(calls->calls.size(), 1u);
    EXPECT_TRUE(IsSet(calls->calls[0], field.name)) << field.name;
  }
}

}  // namespace
}  // namespace runahead
