// Chat completions as calls.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/calls.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const DoorFacts kFacts{"tiny", {"gpt-4o", "default"}};

OpenAiCalls ReadChat(const std::string& body) {
  const absl::StatusOr<OpenAiCalls> calls = ReadChatRequest(body, kFacts);
  EXPECT_TRUE(calls.ok()) << calls.status() << " of " << body;
  return calls.value_or(OpenAiCalls());
}

// A request with one message and further members.
std::string ChatWith(const std::string& members) {
  return absl::StrCat(R"({"messages":[{"role":"user","content":"Hi"}])", members.empty() ? "" : ",", members, "}");
}

v1::ChatMessages ReadMessages(const std::string& messages) {
  const OpenAiCalls calls = ReadChat(absl::StrCat("{\"messages\":", messages, "}"));
  return calls.calls.empty() ? v1::ChatMessages() : calls.calls[0].chat();
}

TEST(ChatRequest, TheLeastTakesTheDefaultsOfTheField) {
  const OpenAiCalls calls = ReadChat(ChatWith(""));
  ASSERT_THAT(calls.calls, SizeIs(1));
  v1::GenerateRequest expected;
  v1::ChatMessage& message = *expected.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("Hi");
  expected.mutable_sampling()->set_temperature(1);
  expected.mutable_stop()->set_fill_context(true);
  EXPECT_EQ(calls.calls[0].DebugString(), expected.DebugString());
  EXPECT_TRUE(calls.chat);
  EXPECT_FALSE(calls.stream || calls.include_usage || calls.logprobs);
  EXPECT_EQ(calls.model, "tiny");
  EXPECT_THAT(calls.ignored, IsEmpty());
  EXPECT_FALSE(calls.echo);
}

TEST(ChatRequest, NullIsAsIfItWereAbsent) {
  const OpenAiCalls plain = ReadChat(ChatWith(""));
  const OpenAiCalls nulls = ReadChat(ChatWith(
      R"("model":null,"temperature":null,"top_p":null,"n":null,"stream":null,"stream_options":null,"stop":null,
         "max_tokens":null,"max_completion_tokens":null,"seed":null,"logprobs":null,"top_logprobs":null,"tools":null,
         "tool_choice":null,"response_format":null,"logit_bias":null,"chat_template_kwargs":null,"user":null,
         "modalities":null,"audio":null,"prediction":null,"top_k":null,"priority":null,"function_call":null)"));
  ASSERT_THAT(nulls.calls, SizeIs(1));
  EXPECT_EQ(nulls.calls[0].DebugString(), plain.calls[0].DebugString());
  EXPECT_THAT(nulls.ignored, IsEmpty());
}

TEST(ChatRequest, AllOfAMessageReachesTheTemplate) {
  const v1::ChatMessages chat = ReadMessages(R"([
      {"role":"developer","content":"Be kind.","name":"boss"},
      {"role":"assistant","content":null,"reasoning_content":"Hm.","refusal":null,
       "tool_calls":[{"id":"call_1","type":"function","function":{"name":"add","arguments":"{\"z\": 1, \"a\": 2.0}"}}]},
      {"role":"tool","content":"3","tool_call_id":"call_1"}])");
  ASSERT_EQ(chat.messages_size(), 3);
  EXPECT_EQ(chat.messages(0).name(), "boss");
  EXPECT_FALSE(chat.messages(0).has_tool_calls() || chat.messages(0).has_reasoning_content());
  EXPECT_EQ(chat.messages(1).content(), "");
  EXPECT_EQ(chat.messages(1).reasoning_content(), "Hm.");
  EXPECT_EQ(chat.messages(1).tool_calls(),
            R"([{"id":"call_1","type":"function","function":{"name":"add","arguments":"{\"z\": 1, \"a\": 2.0}"}}])");
  EXPECT_EQ(chat.messages(2).tool_call_id(), "call_1");
}

TEST(ChatRequest, PartsOfTextAreJoinedAsTheyAre) {
  const v1::ChatMessages chat = ReadMessages(
      R"([{"role":"user","content":[{"type":"text","text":"a "},{"type":"text","text":"b"},{"type":"text","text":""}]},
          {"role":"user","content":[]},{"role":"assistant","content":"c","tool_calls":[],"reasoning":"why"}])");
  ASSERT_EQ(chat.messages_size(), 3);
  EXPECT_EQ(chat.messages(0).content(), "a b");
  EXPECT_EQ(chat.messages(1).content(), "");
  EXPECT_FALSE(chat.messages(2).has_tool_calls());
  EXPECT_EQ(chat.messages(2).reasoning_content(), "why");
}

TEST(ChatRequest, TheTemplateIsToldMore) {
  const OpenAiCalls calls = ReadChat(ChatWith(
      R"("chat_template_kwargs":{"enable_thinking": false},"add_generation_prompt":false,"continue_final_message":true)"));
  const v1::ChatMessages& chat = calls.calls[0].chat();
  EXPECT_EQ(chat.template_variables(), R"({"enable_thinking": false})");
  EXPECT_TRUE(chat.has_add_generation_prompt() && !chat.add_generation_prompt());
  EXPECT_TRUE(chat.continue_final_message());
}

TEST(ChatRequest, MoreTokensThanOneNameHas) {
  const auto stop = [](const std::string& members) { return ReadChat(ChatWith(members)).calls[0].stop(); };
  EXPECT_EQ(stop(R"("max_tokens":7)").max_tokens(), 7);
  EXPECT_FALSE(stop(R"("max_tokens":7)").fill_context());
  EXPECT_EQ(stop(R"("max_completion_tokens":8)").max_tokens(), 8);
  EXPECT_EQ(stop(R"("max_tokens":7,"max_completion_tokens":8)").max_tokens(), 8);
}

TEST(ChatRequest, LogprobsWithAndWithoutAlternatives) {
  const OpenAiCalls plain = ReadChat(ChatWith(R"("logprobs":true)"));
  EXPECT_TRUE(plain.logprobs && plain.top_logprobs == 0);
  EXPECT_TRUE(plain.calls[0].sampling().has_logprobs());
  const OpenAiCalls top = ReadChat(ChatWith(R"("logprobs":true,"top_logprobs":20)"));
  EXPECT_EQ(top.top_logprobs, 20);
  EXPECT_EQ(top.calls[0].sampling().logprobs(), 20);
  const OpenAiCalls none = ReadChat(ChatWith(R"("logprobs":false,"top_logprobs":0)"));
  EXPECT_FALSE(none.logprobs || none.calls[0].sampling().has_logprobs());
}

TEST(ChatRequest, AChatsPromptMayBeScoredAlone) {
  const OpenAiCalls calls = ReadChat(ChatWith(R"("prompt_logprobs":2,"max_tokens":0)"));
  EXPECT_EQ(calls.prompt_logprobs, 2);
  EXPECT_FALSE(calls.logprobs || calls.calls[0].sampling().has_logprobs());
  EXPECT_EQ(calls.calls[0].prompt_logprobs(), 2);
  EXPECT_TRUE(calls.calls[0].stop().has_max_tokens());
  EXPECT_EQ(calls.calls[0].stop().max_tokens(), 0);
  const OpenAiCalls none = ReadChat(ChatWith(R"("prompt_logprobs":null)"));
  EXPECT_FALSE(none.prompt_logprobs.has_value() || none.calls[0].has_prompt_logprobs());
}

TEST(ChatRequest, StreamsWithUsageWhereAsked) {
  EXPECT_FALSE(ReadChat(ChatWith(R"("stream":true)")).include_usage);
  const OpenAiCalls calls = ReadChat(
      ChatWith(R"("stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false,"novel":1})"));
  EXPECT_TRUE(calls.stream && calls.include_usage);
  EXPECT_THAT(calls.ignored, ElementsAre("stream_options.novel"));
}

TEST(ChatRequest, ChoicesAreAnswersOfOneCall) {
  const OpenAiCalls calls = ReadChat(ChatWith(R"("n":64,"seed":5)"));
  ASSERT_THAT(calls.calls, SizeIs(1));
  EXPECT_EQ(calls.choices_per_prompt, 64);
  EXPECT_EQ(calls.calls[0].n(), 64);
  EXPECT_EQ(calls.calls[0].sampling().seed(), 5u);
  EXPECT_FALSE(ReadChat(ChatWith(R"("n":1)")).calls[0].has_n());
}

TEST(ChatRequest, NamesOfTheModel) {
  const auto asked = [](const std::string& model) {
    const OpenAiCalls calls = ReadChat(ChatWith(absl::StrCat("\"model\":\"", model, "\"")));
    return std::pair(calls.calls[0].model(), calls.model);
  };
  EXPECT_EQ(asked(""), std::pair(std::string(), std::string("tiny")));
  EXPECT_EQ(asked("GPT-4o"), std::pair(std::string(), std::string("GPT-4o")));
  EXPECT_EQ(asked("other"), std::pair(std::string("other"), std::string("other")));  // the router says what it has
}

TEST(ChatRequest, UnknownMembersAreIgnoredAndListed) {
  const OpenAiCalls calls = ReadChat(
      R"({"zeta":1,"messages":[{"role":"user","content":"a","id":7},{"role":"user","content":"b","id":8,"at":0}],
          "user":"u","metadata":{},"store":true,"service_tier":"auto","parallel_tool_calls":false,"alpha":null})");
  EXPECT_THAT(calls.ignored, ElementsAre("messages[].id", "messages[].at", "zeta", "alpha"));
}

TEST(ChatRequest, ToolsThatMayNotBeCalledAreNotGiven) {
  const OpenAiCalls calls = ReadChat(ChatWith(R"("tools":[{"function":{"name":"f"}}],"tool_choice":"none")"));
  EXPECT_EQ(calls.calls[0].chat().tools(), "");
  EXPECT_EQ(ReadChat(ChatWith(R"("tools":[],"tool_choice":"auto")")).calls[0].chat().tools(), "");
}

TEST(ChatRequest, ToolsGoToTheTemplateWhereTheModelsCallsAreRead) {
  const std::string body =
      ChatWith(R"("tools":[{"z": 1, "function": {"name": "f", "parameters": {"properties": {}}}}])");
  const absl::StatusOr<OpenAiCalls> calls = ReadChatRequest(body, {"tiny", {}, "hermes", ""});
  ASSERT_TRUE(calls.ok()) << calls.status();
  EXPECT_EQ(calls->tool_format, "hermes");
  EXPECT_THAT(*calls->tool_names, ElementsAre("f"));
  EXPECT_EQ(calls->calls[0].chat().tools(),
            R"([{"z": 1, "function": {"name": "f", "parameters": {"properties": {}}}}])");
  EXPECT_EQ(ReadChatRequest(ChatWith(""), {"tiny", {}, "hermes", ""})->tool_format, "");
  const absl::Status unknown = ReadChatRequest(body, kFacts).status();
  EXPECT_EQ(unknown.message(),
            "tools: how this model writes calls is not known here; leave it out, or describe the tools in a message");
}

TEST(ChatRequest, OneCallIsKeptWhereTheyMayNotBeParallel) {
  EXPECT_TRUE(ReadChat(ChatWith("\"parallel_tool_calls\":false")).one_tool_call);
  EXPECT_FALSE(ReadChat(ChatWith("\"parallel_tool_calls\":true")).one_tool_call);
  EXPECT_FALSE(ReadChat(ChatWith("\"parallel_tool_calls\":null")).one_tool_call);
}

TEST(ChatRequest, SaysHowItCallsWhatTheServiceMayBlame) {
  EXPECT_EQ(ReadChat(ChatWith("")).sent.prompt, "messages");
  EXPECT_EQ(ReadChat(ChatWith("\"guided_regex\":\"a\"")).sent.structure, "guided_regex");
  EXPECT_TRUE(ReadChat(ChatWith(R"("stop":"")")).sent.one_stop);
  EXPECT_FALSE(ReadChat(ChatWith(R"("stop":[""])")).sent.one_stop);
  EXPECT_FALSE(ReadChat(ChatWith("")).sent.one_stop);
  const std::string forced =
      ChatWith(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")");
  const absl::StatusOr<OpenAiCalls> calls = ReadChatRequest(forced, {"tiny", {}, "hermes", ""});
  ASSERT_TRUE(calls.ok()) << calls.status();
  EXPECT_EQ(calls->sent.structure, "tools");
  EXPECT_EQ(calls->sent.tool, 0);
  const std::string named = ChatWith(R"("tools":[{"type":"function","function":{"name":"f"}},
      {"type":"function","function":{"name":"g"}}],
      "tool_choice":{"type":"function","function":{"name":"g"}})");
  const absl::StatusOr<OpenAiCalls> second = ReadChatRequest(named, {"tiny", {}, "hermes", ""});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->sent.tool, 1);
}

TEST(ChatRequest, AnAnswerThatGoesOnDoesNotBeginWithThoughts) {
  const auto format = [](const std::string& members) {
    return ReadChatRequest(ChatWith(members), {"tiny", {}, "", "think_open"})->reasoning_format;
  };
  EXPECT_EQ(format(""), "think_open");
  EXPECT_EQ(format("\"add_generation_prompt\":true"), "think_open");
  EXPECT_EQ(format("\"continue_final_message\":true"), "");
  EXPECT_EQ(format("\"add_generation_prompt\":false"), "");
}

struct BadChat {
  const char* message;  // begins so
  const char* body;
};

class ChatRequestRefuses : public ::testing::TestWithParam<BadChat> {};

TEST_P(ChatRequestRefuses, NamingTheMember) {
  const absl::Status status = ReadChatRequest(GetParam().body, kFacts).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().message);
  const std::string message = GetParam().message;
  EXPECT_EQ(BlamedField(status), message.substr(0, message.find(": ")));
}

#define MESSAGES(content) "{\"messages\":[" content "]}"
#define MEMBERS(members) "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]," members "}"

INSTANTIATE_TEST_SUITE_P(
    Messages, ChatRequestRefuses,
    ::testing::Values(
        BadChat{"body: it is no JSON, at byte 1", ""}, BadChat{"body: it is a string; an object is allowed", "\"x\""},
        BadChat{"messages: it is missing", "{}"}, BadChat{"messages: it is missing", "{\"messages\":null}"},
        BadChat{"messages: at least one is needed", MESSAGES("")},
        BadChat{"messages: it is a string; an array of messages is allowed", "{\"messages\":\"Hi\"}"},
        BadChat{"messages[0]: it is a string; an object is allowed", MESSAGES("\"Hi\"")},
        BadChat{"messages[0].role: it is missing", MESSAGES("{\"content\":\"Hi\"}")},
        BadChat{"messages[0].role: it is 1; a string is allowed", MESSAGES("{\"role\":1,\"content\":\"Hi\"}")},
        BadChat{"messages[1].role: \"function\" is not supported here; \"tool\" is allowed",
                MESSAGES("{\"role\":\"user\",\"content\":\"\"},{\"role\":\"function\",\"content\":\"Hi\"}")},
        BadChat{"messages[0].content: it is missing; a string or an array of parts of text is allowed",
                MESSAGES("{\"role\":\"user\"}")},
        BadChat{"messages[0].content: it is an object; a string or an array of parts of text is allowed",
                MESSAGES("{\"role\":\"user\",\"content\":{}}")},
        BadChat{"messages[0].content[0]: it is a string; an object is allowed",
                MESSAGES("{\"role\":\"user\",\"content\":[\"Hi\"]}")},
        BadChat{"messages[0].content[0].type: it is missing; \"text\" is allowed",
                MESSAGES("{\"role\":\"user\",\"content\":[{\"text\":\"Hi\"}]}")},
        BadChat{
            "messages[0].content[1].type: \"image_url\" is not supported here; \"text\" is allowed",
            MESSAGES("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"},{\"type\":\"image_url\"}]}")},
        BadChat{"messages[0].content[0].text: it is missing",
                MESSAGES("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}")},
        BadChat{"messages[0].name: it is 5; a string is allowed",
                MESSAGES("{\"role\":\"user\",\"content\":\"\",\"name\":5}")},
        BadChat{"messages[0].tool_calls: it is an object; an array of calls is allowed",
                MESSAGES("{\"role\":\"assistant\",\"tool_calls\":{}}")},
        BadChat{"messages[0].function_call: it is not supported here; leave it out",
                MESSAGES("{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\"}}")},
        BadChat{
            "messages[1].content: it is given twice",
            MESSAGES("{\"role\":\"user\",\"content\":\"\"},{\"content\":\"\",\"role\":\"user\",\"content\":null}")}));

INSTANTIATE_TEST_SUITE_P(
    Members, ChatRequestRefuses,
    ::testing::Values(
        BadChat{"model: it is 5; a string is allowed", MEMBERS("\"model\":5")},
        BadChat{"stream: it is a string; true or false is allowed", MEMBERS("\"stream\":\"true\"")},
        BadChat{"stream_options: it goes with \"stream\": true",
                MEMBERS("\"stream_options\":{\"include_usage\":true}")},
        BadChat{"stream_options: it is true; an object is allowed", MEMBERS("\"stream\":true,\"stream_options\":true")},
        BadChat{"stream_options.continuous_usage_stats: it is not supported here; leave it out",
                MEMBERS("\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}")},
        BadChat{"max_tokens: it is 0; an integer of at least 1 is allowed. With \"prompt_logprobs\", or in a "
                "completion with "
                "\"echo\": true and \"logprobs\", it may be 0, for the prompt's log probabilities alone",
                MEMBERS("\"max_tokens\":0")},
        BadChat{"max_tokens: it is -1; an integer of at least 1 is allowed", MEMBERS("\"max_tokens\":-1")},
        BadChat{"max_completion_tokens: it is 3000000000; an integer of at least 1 is allowed",
                MEMBERS("\"max_completion_tokens\":3000000000")},
        BadChat{"n: it is 0; an integer from 1 to 64 is allowed", MEMBERS("\"n\":0")},
        BadChat{"n: it is 65; an integer from 1 to 64 is allowed", MEMBERS("\"n\":65")},
        BadChat{"logprobs: it is 5; true or false is allowed", MEMBERS("\"logprobs\":5")},
        BadChat{"top_logprobs: it is 21; an integer from 0 to 20 is allowed",
                MEMBERS("\"logprobs\":true,\"top_logprobs\":21")},
        BadChat{"top_logprobs: it goes with \"logprobs\": true", MEMBERS("\"top_logprobs\":2")},
        BadChat{"prompt_logprobs: it is 21; an integer from 0 to 20 is allowed", MEMBERS("\"prompt_logprobs\":21")},
        BadChat{"prompt_logprobs: it is -1; an integer from 0 to 20 is allowed", MEMBERS("\"prompt_logprobs\":-1")},
        BadChat{"prompt_logprobs: it does not go with \"stream\": true; a completion's \"echo\" with \"logprobs\" does",
                MEMBERS("\"prompt_logprobs\":0,\"stream\":true")},
        BadChat{"chat_template_kwargs: it is an array; an object is allowed", MEMBERS("\"chat_template_kwargs\":[]")},
        BadChat{"add_generation_prompt: it is 1; true or false is allowed", MEMBERS("\"add_generation_prompt\":1")},
        BadChat{"tools: it is an object; an array of tools is allowed", MEMBERS("\"tools\":{}")},
        BadChat{"tools[0].function: it is missing", MEMBERS("\"tools\":[{}],\"tool_choice\":\"none\"")},
        BadChat{"max_tokens: it is given twice", MEMBERS("\"max_tokens\":5,\"max_tokens\":5")},
        BadChat{
            "tool_choice: \"always\" is not supported here; \"auto\", \"none\", \"required\" or the name of a tool is "
            "allowed",
            MEMBERS("\"tool_choice\":\"always\"")},
        BadChat{"tool_choice: there are no tools to call", MEMBERS("\"tool_choice\":\"required\"")},
        BadChat{"tool_choice: it names no function", MEMBERS("\"tool_choice\":{\"type\":\"function\"}")},
        BadChat{"tool_choice: it is true; \"auto\", \"none\", \"required\" or the name of a tool is allowed",
                MEMBERS("\"tool_choice\":true")},
        BadChat{"echo: it is not supported here; leave it out", MEMBERS("\"echo\":true")},
        BadChat{"add_special_tokens: it is not supported here; leave it out", MEMBERS("\"add_special_tokens\":true")}));

#undef MESSAGES
#undef MEMBERS

constexpr char kTools[] = R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}])";

v1::GenerateRequest ReadWith(const DoorFacts& facts, const std::string& members) {
  const absl::StatusOr<OpenAiCalls> calls = ReadChatRequest(ChatWith(members), facts);
  EXPECT_TRUE(calls.ok()) << calls.status();
  return calls.ok() ? calls->calls[0] : v1::GenerateRequest();
}

TEST(ChatRequest, ForcesACallWhereTheModelsFormIsKnown) {
  DoorFacts facts = kFacts;
  facts.tool_format = "hermes";
  const std::string required = absl::StrCat(kTools, R"(,"tool_choice":"required")");
  const v1::Structure structure = ReadWith(facts, required).structure();
  EXPECT_EQ(structure.before(), "<tool_call>\n");
  EXPECT_THAT(structure.json_schema(), ::testing::HasSubstr(R"("const":"add")"));
  EXPECT_EQ(ReadWith(facts, absl::StrCat(kTools, R"(,"tool_choice":{"type":"function","function":{"name":"add"}})"))
                .structure()
                .json_schema(),
            structure.json_schema());
  EXPECT_FALSE(ReadWith(facts, kTools).has_structure());
  EXPECT_FALSE(ReadWith(facts, absl::StrCat(kTools, R"(,"tool_choice":"none")")).has_structure());
  EXPECT_EQ(BlamedField(ReadChatRequest(ChatWith(required), kFacts).status()), "tools");
  EXPECT_EQ(BlamedField(
                ReadChatRequest(ChatWith(absl::StrCat(required, R"(,"response_format":{"type":"json_object"})")), facts)
                    .status()),
            "tool_choice");
}

TEST(ChatRequest, ForcesACallAsTheTemplateWritesOne) {
  DoorFacts facts = kFacts;
  facts.tool_format = "json Calls:\n[{\"tool_name\": \"NAME\", \"arguments\": {}}]";
  const v1::Structure structure = ReadWith(facts, absl::StrCat(kTools, R"(,"tool_choice":"required")")).structure();
  EXPECT_EQ(structure.before(), "Calls:\n[");
  EXPECT_EQ(structure.behind(), "]");
  EXPECT_THAT(structure.json_schema(), ::testing::HasSubstr(R"("tool_name":{"const":"add"})"));
  const auto calls = ReadChatRequest(ChatWith(kTools), facts);
  ASSERT_TRUE(calls.ok()) << calls.status();
  EXPECT_EQ(calls->tool_format, facts.tool_format);
  facts.tool_format = "json Calls:\n[]";
  EXPECT_EQ(BlamedField(ReadChatRequest(ChatWith(kTools), facts).status()), "tools");
}

TEST(ChatRequest, AnAnswerOfAGivenFormIsAllContent) {
  DoorFacts facts = kFacts;
  facts.reasoning_format = "think";
  for (const char* format : {"hermes", "json"}) {
    facts.tool_format = format;
    const auto calls = ReadChatRequest(ChatWith(absl::StrCat(kTools, R"(,"guided_regex":"a+")")), facts);
    ASSERT_TRUE(calls.ok()) << calls.status();
    EXPECT_EQ(calls->calls[0].structure().regex(), "a+");
    EXPECT_EQ(calls->tool_format, "");
    EXPECT_EQ(calls->reasoning_format, "");
  }
}

}  // namespace
}  // namespace runahead
