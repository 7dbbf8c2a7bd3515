// docs/requests.md against what it tells of: each field of GenerateRequest, and how it is said by `runahead generate`,
// at the OpenAI door, and in vLLM's engine protocol. What stands on one side only makes this red.
#include <google/protobuf/text_format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/generate/generate_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runahead/v1/inference.pb.h"
#include "server/engine/generate_mapping.h"
#include "server/gateway/openai/calls.h"

namespace runahead {
namespace {

namespace engine = vllm::grpc::engine;
using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::TextFormat;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The sides of the page, as its columns are called.
enum Side { kCli, kCompletion, kChat, kEngine, kSides };
constexpr const char* kSideNames[kSides] = {"`runahead generate`", "`/v1/completions`", "`/v1/chat/completions`",
                                            "vLLM's engine"};

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What stands between backticks.
std::vector<std::string> Names(const std::string& cell) {
  std::vector<std::string> names;
  const std::vector<std::string> pieces = absl::StrSplit(cell, '`');
  for (size_t i = 1; i < pieces.size(); i += 2) names.push_back(pieces[i]);
  return names;
}

struct Page {
  std::vector<std::string> fields;                                // of the first column
  std::map<std::string, std::vector<std::string>> names[kSides];  // by field; none where there is a reason instead
  std::set<std::string> others[kSides];                           // of "What sets no field"
};

const Page& ThePage() {
  static const Page& page = *[] {
    auto* const read = new Page;
    const std::string text = Read("docs/requests.md");
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      std::vector<std::string> cells = absl::StrSplit(line, " | ");
      if (!absl::StartsWith(line, "| ") || absl::StartsWith(line, "| gRPC") || absl::StartsWith(line, "| where"))
        continue;
      cells.front() = cells.front().substr(2);
      if (cells.size() == 3) {
        for (int side = 0; side < kSides; ++side) {
          if (!absl::StrContains(cells[0], kSideNames[side])) continue;
          for (const std::string& name : Names(cells[1])) read->others[side].insert(name);
        }
        continue;
      }
      EXPECT_THAT(cells, SizeIs(1 + kSides)) << line;
      EXPECT_THAT(Names(cells[0]), SizeIs(1)) << line;
      if (cells.size() != 1 + kSides || Names(cells[0]).empty()) continue;
      const std::string field = Names(cells[0])[0];
      read->fields.push_back(field);
      for (int side = 0; side < kSides; ++side) {
        const bool reason = absl::StartsWith(cells[1 + side], "no: ");
        EXPECT_TRUE(reason || cells[1 + side][0] == '`') << line << ": names, or `no: ` and the reason";
        if (!reason) read->names[side][field] = Names(cells[1 + side]);
      }
    }
    return read;
  }();
  return page;
}

// A file with `text`, of the form's or the tools' flags.
std::string FileOf(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path) << text;
  return path;
}

constexpr char kSchema[] = R"({"type":"object"})";
constexpr char kTools[] = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";

// What stands behind a flag, for each field that it sets; empty: nothing does.
const std::map<std::string, std::string>& FlagValues() {
  static const auto& values =
      *new std::map<std::string, std::string>{{"--model", "m"},
                                              {"--prompt", "q"},
                                              {"--prompt-file", FileOf("prompt", "q")},
                                              {"--token-ids", "1,2"},
                                              {"--message", "assistant:Ho"},
                                              {"--tools", FileOf("tools", kTools)},
                                              {"--template-variable", "a=1"},
                                              {"--truncate-prompt", "5"},
                                              {"--temperature", "0.5"},
                                              {"--top-k", "5"},
                                              {"--top-p", "0.5"},
                                              {"--min-p", "0.5"},
                                              {"--repetition-penalty", "1.5"},
                                              {"--presence-penalty", "1"},
                                              {"--frequency-penalty", "1"},
                                              {"--seed", "7"},
                                              {"--logit-bias", "5=-100"},
                                              {"--n", "3"},
                                              {"--max-tokens", "9"},
                                              {"--min-tokens", "3"},
                                              {"--stop", "END"},
                                              {"--stop-id", "7"},
                                              {"--ignore-eos", ""},
                                              {"--bad-word", "oh"},
                                              {"--json-schema", kSchema},
                                              {"--json-object", ""},
                                              {"--regex", "a+"},
                                              {"--grammar", FileOf("grammar", "root ::= \"a\"")},
                                              {"--choice", "a"},
                                              {"--logprobs", "3"},
                                              {"--prompt-logprobs", "2"},
                                              {"--request-id", "mine"},
                                              {"--user", "me"},
                                              {"--priority", "low"},
                                              {"--no-cache", ""},
                                              {"--width", "2"},
                                              {"--parts", "700,324"},
                                              {"--schedule", "kvr"}};
  return values;
}

// The members of a body with a member of that name, beside the prompt or the messages.
const std::map<std::string, std::string>& Members() {
  static const auto& members = *new std::map<std::string, std::string>{
      {"model", R"("model":"m")"},
      {"tools", absl::StrCat(R"("tools":)", kTools)},
      {"chat_template_kwargs", R"("chat_template_kwargs":{"a": 1})"},
      {"add_generation_prompt", R"("add_generation_prompt":false)"},
      {"continue_final_message", R"("continue_final_message":true)"},
      {"truncate_prompt_tokens", R"("truncate_prompt_tokens":5)"},
      {"temperature", R"("temperature":0.5)"},
      {"top_k", R"("top_k":5)"},
      {"top_p", R"("top_p":0.5)"},
      {"min_p", R"("min_p":0.5)"},
      {"repetition_penalty", R"("repetition_penalty":1.5)"},
      {"presence_penalty", R"("presence_penalty":1)"},
      {"frequency_penalty", R"("frequency_penalty":1)"},
      {"seed", R"("seed":7)"},
      {"logit_bias", R"("logit_bias":{"5":-100})"},
      {"n", R"("n":3)"},
      {"max_tokens", R"("max_tokens":9)"},
      {"max_completion_tokens", R"("max_completion_tokens":9)"},
      {"min_tokens", R"("min_tokens":3)"},
      {"stop", R"("stop":"END")"},
      {"stop_token_ids", R"("stop_token_ids":[7])"},
      {"ignore_eos", R"("ignore_eos":true)"},
      {"bad_words", R"("bad_words":["oh"])"},
      {"structured_outputs.json", absl::StrCat(R"("structured_outputs":{"json":)", kSchema, "}")},
      {"guided_json", absl::StrCat(R"("guided_json":)", kSchema)},
      {"tool_choice", absl::StrCat(R"("tool_choice":"required","tools":)", kTools)},
      {"structured_outputs.json_object", R"("structured_outputs":{"json_object":true})"},
      {"guided_json_object", R"("guided_json_object":true)"},
      {"structured_outputs.regex", R"("structured_outputs":{"regex":"a+"})"},
      {"guided_regex", R"("guided_regex":"a+")"},
      {"structured_outputs.grammar", R"("structured_outputs":{"grammar":"root ::= \"a\""})"},
      {"guided_grammar", R"("guided_grammar":"root ::= \"a\"")"},
      {"structured_outputs.choice", R"("structured_outputs":{"choice":["a"]})"},
      {"guided_choice", R"("guided_choice":["a"])"},
      {"top_logprobs", R"("logprobs":true,"top_logprobs":3)"},
      {"prompt_logprobs", R"("prompt_logprobs":2)"},
      {"echo", R"("echo":true,"logprobs":2)"},
      {"user", R"("user":"me")"},
      {"priority", R"("priority":1)"},
      {"timeout", R"("timeout":2.5)"},
      // Of the one message that there is then.
      {"messages[].role", R"("role":"system")"},
      {"messages[].content", R"("content":[{"type":"text","text":"Ho"}])"},
      {"messages[].name", R"("name":"me")"},
      {"messages[].tool_call_id", R"("tool_call_id":"1")"},
      {"messages[].tool_calls", R"("tool_calls":[{"id":"1"}])"},
      {"messages[].reasoning_content", R"("reasoning_content":"hm")"}};
  return members;
}

// The same of the engine's request, as text.
const std::map<std::string, std::string>& EngineTexts() {
  static const auto& texts =
      *new std::map<std::string, std::string>{{"text", "text: 'q'"},
                                              {"tokenized.input_ids", "tokenized { input_ids: 1 input_ids: 2 }"},
                                              {"request_id", "request_id: 'mine'"},
                                              {"truncate_prompt_tokens", ": 5"},
                                              {"temperature", ": 0.5"},
                                              {"top_k", ": 5"},
                                              {"top_p", ": 0.5"},
                                              {"min_p", ": 0.5"},
                                              {"repetition_penalty", ": 1.5"},
                                              {"presence_penalty", ": 1"},
                                              {"frequency_penalty", ": 1"},
                                              {"seed", ": 7"},
                                              {"logit_bias", " { key: 5 value: -100 }"},
                                              {"n", ": 3"},
                                              {"max_tokens", ": 9"},
                                              {"min_tokens", ": 3"},
                                              {"stop", ": 'END'"},
                                              {"stop_token_ids", ": 7"},
                                              {"ignore_eos", ": true"},
                                              {"json_schema", absl::StrCat(": '", kSchema, "'")},
                                              {"json_object", ": true"},
                                              {"regex", ": 'a+'"},
                                              {"grammar", ": 'root ::= \"a\"'"},
                                              {"choice", " { choices: 'a' }"},
                                              {"logprobs", ": 3"},
                                              {"prompt_logprobs", ": 2"}};
  return texts;
}

bool IsLeaf(const FieldDescriptor& field) {
  return field.message_type() == nullptr || field.is_map();
}

void AddLeaves(const Descriptor& message, const std::string& before, std::vector<std::string>& names) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string name = absl::StrCat(before, std::string(field.name()));
    if (IsLeaf(field)) {
      names.push_back(name);
    } else {
      AddLeaves(*field.message_type(), absl::StrCat(name, "."), names);
    }
  }
}

// What `message` has at `name`, of all elements; empty where it is not set.
std::string ValueAt(const Message& message, const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 1));
  const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(parts[0]);
  if (field == nullptr) return "";
  const auto& reflection = *message.GetReflection();
  if (!field->is_repeated() && !reflection.HasField(message, field)) return "";
  const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
  std::string value;
  for (int i = 0; i < count; ++i) {
    if (IsLeaf(*field)) {
      std::string text;
      TextFormat::PrintFieldValueToString(message, field, field->is_repeated() ? i : -1, &text);
      absl::StrAppend(&value, text, ";");
    } else if (field->is_repeated()) {
      value += ValueAt(reflection.GetRepeatedMessage(message, field, i), parts[1]);
    } else {
      value += ValueAt(reflection.GetMessage(message, field), parts[1]);
    }
  }
  return value;
}

// Parsed flags and the help that lists them.
struct Cli {
  CLI::App app;
  GenerateFlags flags;
  Cli() { flags.AddTo(app); }
};

absl::StatusOr<v1::GenerateRequest> ByFlags(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"runahead", "--router", "127.0.0.1:1"});
  std::vector<const char*> argv;
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  Cli cli;
  try {
    cli.app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return cli.flags.Request();
}

// The first call of a body. Members that the door does not know are an error here.
absl::StatusOr<v1::GenerateRequest> ByBody(Side side, const std::string& members) {
  DoorFacts facts;
  facts.tool_format = "hermes";
  const std::string body = absl::StrCat("{", members, "}");
  const auto read = side == kChat ? ReadChatRequest(body, facts) : ReadCompletionRequest(body, facts);
  if (!read.ok()) return read.status();
  if (!read->ignored.empty()) return absl::UnknownError(absl::StrCat("ignored: ", absl::StrJoin(read->ignored, ", ")));
  return read->calls.at(0);
}

absl::StatusOr<v1::GenerateRequest> ByEngine(const std::string& text) {
  engine::GenerateRequest request;
  if (!TextFormat::ParseFromString(text, &request)) return absl::InvalidArgumentError(text);
  return ToPublicRequest(request);
}

absl::StatusOr<v1::GenerateRequest> CliRequest(const std::string& field, const std::string& name) {
  const bool is_input = field == "prompt" || absl::StartsWith(field, "token_ids");
  const bool is_chat = absl::StartsWith(field, "chat.");
  std::vector<std::string> flags = is_input  ? std::vector<std::string>{}
                                   : is_chat ? std::vector<std::string>{"--message", "user:Hi"}
                                             : std::vector<std::string>{"--prompt", "p"};
  if (name.empty()) return ByFlags(is_input ? std::vector<std::string>{"--prompt", "p"} : flags);
  flags.push_back(name);
  if (!FlagValues().at(name).empty()) flags.push_back(FlagValues().at(name));
  return ByFlags(flags);
}

absl::StatusOr<v1::GenerateRequest> CompletionRequest(const std::string& field, const std::string& name) {
  if (name == "prompt") {
    return ByBody(kCompletion, field == "prompt" ? R"("prompt":"q")" : R"("prompt":[1,2])");
  }
  std::string members = R"("prompt":"p")";
  if (name == "logprobs") absl::StrAppend(&members, R"(,"logprobs":3)");
  if (name == "response_format") {
    absl::StrAppend(&members, field == "structure.json_object"
                                  ? R"(,"response_format":{"type":"json_object"})"
                                  : absl::StrCat(R"(,"response_format":{"type":"json_schema","json_schema":{"schema":)",
                                                 kSchema, "}}"));
  } else if (!name.empty() && name != "logprobs") {
    absl::StrAppend(&members, ",", Members().at(name));
  }
  return ByBody(kCompletion, members);
}

absl::StatusOr<v1::GenerateRequest> ChatRequest(const std::string& field, const std::string& name) {
  // A message of the assistant, for some go on with it or say what it thought.
  nlohmann::json message = {{"role", "assistant"}, {"content", "Hi"}};
  if (absl::StartsWith(name, "messages[].")) {
    message.update(nlohmann::json::parse(absl::StrCat("{", Members().at(name), "}")));
  }
  std::string members = absl::StrCat(R"("messages":[)", message.dump(), "]");
  if (name == "logprobs") absl::StrAppend(&members, R"(,"logprobs":true)");
  if (name == "response_format") {
    absl::StrAppend(&members, field == "structure.json_object"
                                  ? R"(,"response_format":{"type":"json_object"})"
                                  : absl::StrCat(R"(,"response_format":{"type":"json_schema","json_schema":{"schema":)",
                                                 kSchema, "}}"));
  } else if (!name.empty() && name != "logprobs" && !absl::StartsWith(name, "messages")) {
    absl::StrAppend(&members, ",", Members().at(name));
  }
  return ByBody(kChat, members);
}

absl::StatusOr<v1::GenerateRequest> EngineRequest(const std::string& name) {
  if (name.empty()) return ByEngine("tokenized { input_ids: 7 }");
  const std::string& text = EngineTexts().at(name);
  if (name == "text" || absl::StartsWith(name, "tokenized")) return ByEngine(text);
  const bool sampling = engine::SamplingParams::descriptor()->FindFieldByName(name) != nullptr;
  return ByEngine(absl::StrCat("tokenized { input_ids: 7 } ",
                               sampling ? absl::StrCat("sampling_params { ", name, text, " }") : text));
}

// The request in which a side says `field` by `name`; without a name one that does not say it.
absl::StatusOr<v1::GenerateRequest> Request(Side side, const std::string& field, const std::string& name) {
  switch (side) {
    case kCli:
      return CliRequest(field, name);
    case kCompletion:
      return CompletionRequest(field, name);
    case kChat:
      return ChatRequest(field, name);
    default:
      return EngineRequest(name);
  }
}

bool IsHeader(const std::string& name) {
  return absl::StartsWith(name, "x-");
}

// All names of a side: those that set a field, and those that set none.
std::set<std::string> NamesOf(Side side) {
  std::set<std::string> names;
  for (const auto& [field, of_field] : ThePage().names[side]) names.insert(of_field.begin(), of_field.end());
  for (const std::string& name : ThePage().others[side]) {
    EXPECT_TRUE(names.insert(name).second) << name << " sets a field, and sets none";
  }
  return names;
}

TEST(RequestFields, EachStandsOnThePageOnce) {
  std::vector<std::string> leaves;
  AddLeaves(*v1::GenerateRequest::descriptor(), "", leaves);
  EXPECT_THAT(ThePage().fields, ::testing::UnorderedElementsAreArray(leaves));
}

class RequestFieldsOf : public ::testing::TestWithParam<Side> {};

TEST_P(RequestFieldsOf, EachIsSetByEachOfItsNames) {
  for (const auto& [field, names] : ThePage().names[GetParam()]) {
    EXPECT_THAT(names, ::testing::Not(IsEmpty())) << field;
    const auto without = Request(GetParam(), field, "");
    ASSERT_TRUE(without.ok()) << field << ": " << without.status();
    for (const std::string& name : names) {
      if (IsHeader(name)) continue;  // server/gateway/gateway_test sends it
      SCOPED_TRACE(absl::StrCat(field, " by ", name));
      const auto with = Request(GetParam(), field, name);
      ASSERT_TRUE(with.ok()) << with.status();
      EXPECT_NE(ValueAt(*with, field), "");
      EXPECT_NE(ValueAt(*with, field), ValueAt(*without, field));
    }
  }
}

// Whether the name takes a value that no other does: a message, a scale of its own, a form made of tools, whether at
// all.
bool IsOfItsSideOnly(Side side, const std::string& field, const std::string& name) {
  return IsHeader(name) || absl::StartsWith(field, "chat.messages") || field == "priority" || name == "tool_choice" ||
         (side == kChat && name == "logprobs");
}

TEST(RequestFields, EachIsTheSameByAllOfItsNames) {
  std::map<std::string, std::map<std::string, std::vector<std::string>>> names_by_value;  // by field
  for (const Side side : {kCli, kCompletion, kChat, kEngine}) {
    for (const auto& [field, names] : ThePage().names[side]) {
      for (const std::string& name : names) {
        if (IsOfItsSideOnly(side, field, name)) continue;
        const auto request = Request(side, field, name);
        ASSERT_TRUE(request.ok()) << field << " by " << name << ": " << request.status();
        names_by_value[field][ValueAt(*request, field)].push_back(absl::StrCat(name, " of ", kSideNames[side]));
      }
    }
  }
  for (const auto& [field, by_value] : names_by_value) EXPECT_THAT(by_value, SizeIs(1)) << field;
}

INSTANTIATE_TEST_SUITE_P(Sides, RequestFieldsOf, ::testing::Values(kCli, kCompletion, kChat, kEngine));

TEST(RequestFields, TheCommandLineHasTheFlagsOfThePageAndNoOthers) {
  std::set<std::string> listed;
  Cli cli;
  const std::string help = cli.app.help();
  for (const CLI::Option* option : cli.app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      listed.insert(absl::StrCat("--", name));
      EXPECT_TRUE(absl::StrContains(help, absl::StrCat("--", name)));
    }
  }
  EXPECT_EQ(NamesOf(kCli), listed);
}

TEST(RequestFields, TheDescriptionOfTheDoorHasTheMembersOfThePageAndNoOthers) {
  const nlohmann::json schemas =
      nlohmann::json::parse(Read("server/gateway/page/openapi.json")).at("components").at("schemas");
  for (const Side side : {kCompletion, kChat}) {
    SCOPED_TRACE(kSideNames[side]);
    std::set<std::string> described, on_page;
    const auto add = [&](const char* schema, const std::string& before) {
      for (const auto& [name, _] : schemas.at(schema).at("properties").items()) described.insert(before + name);
    };
    add("Sampling", "");
    add(side == kChat ? "ChatRequest" : "CompletionRequest", "");
    if (side == kChat) add("Message", "messages[].");
    described.erase("messages");
    for (const std::string& name : NamesOf(side)) {
      if (IsHeader(name) || absl::StartsWith(name, "guided_")) continue;  // older names are not described
      on_page.insert(absl::StartsWith(name, "messages") ? name : name.substr(0, name.find('.')));
    }
    EXPECT_EQ(on_page, described);
  }
}

TEST(RequestFields, TheEnginesProtocolHasTheFieldsOfThePageAndNoOthers) {
  std::set<std::string> fields;
  const auto add = [&fields](const Descriptor& type, const std::string& before) {
    for (int i = 0; i < type.field_count(); ++i) fields.insert(before + std::string(type.field(i)->name()));
  };
  add(*engine::GenerateRequest::descriptor(), "");
  add(*engine::TokenizedInput::descriptor(), "tokenized.");
  add(*engine::SamplingParams::descriptor(), "");
  for (const char* holder : {"tokenized", "sampling_params"}) EXPECT_EQ(fields.erase(holder), 1u);
  EXPECT_EQ(NamesOf(kEngine), fields);
}

}  // namespace
}  // namespace runahead
