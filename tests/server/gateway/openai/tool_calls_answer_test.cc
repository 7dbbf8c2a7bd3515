// Calls of tools, and thoughts, in the answers of chats.
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/answer.h"
#include "tests/server/gateway/openai/answer_events.h"

namespace runahead {
namespace {

using testing::AddLogprobs;
using testing::CallsOf;
using ::testing::ElementsAre;
using testing::EventsOf;
using testing::FinishedWith;
using ::testing::SizeIs;
using testing::StartedWith;
using testing::TextOf;
using Json = nlohmann::json;

OpenAiCalls CallsWithTools(bool stream) {
  OpenAiCalls calls = CallsOf(true, stream);
  calls.tool_format = "hermes";
  calls.tool_names =
      std::make_shared<const absl::flat_hash_set<std::string>>(absl::flat_hash_set<std::string>{"f", "g"});
  calls.reasoning_format = "think";
  return calls;
}

// The ids of calls are drawn: they are checked, and taken away.
void TakeCallId(Json& call) {
  EXPECT_THAT(call["id"].get<std::string>(), ::testing::MatchesRegex("[0-9A-Za-z]{9}"));
  call.erase("id");
}

TEST(ToolCallsAnswer, CallsOfToolsAndThoughtsStandApart) {
  std::vector<Json> events = EventsOf<Json>(
      CallsWithTools(false),
      {StartedWith(7), TextOf("<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"f\", "),
       TextOf("\"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>"),
       FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  Json& choice = events[0]["choices"][0];
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u);
  for (Json& call : choice["message"]["tool_calls"]) TakeCallId(call);
  EXPECT_EQ(choice, Json::parse(R"({"index":0,"logprobs":null,"finish_reason":"tool_calls","message":{
      "role":"assistant","content":null,"refusal":null,"reasoning_content":"Hm.","tool_calls":[
      {"type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},
      {"type":"function","function":{"name":"g","arguments":"{}"}}]}})"));
}

TEST(ToolCallsAnswer, NoIdOfACallComesTwice) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  std::set<std::string> ids;
  for (int answer = 0; answer < 2; ++answer) {
    const std::vector<Json> events = EventsOf<Json>(
        CallsWithTools(false), {StartedWith(7), TextOf(text), FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
    for (Json call : events[0]["choices"][0]["message"]["tool_calls"]) {
      ids.insert(call["id"]);
      TakeCallId(call);
    }
  }
  EXPECT_THAT(ids, SizeIs(2000));
}

TEST(ToolCallsAnswer, OfCallsThatMayNotBeParallelTheFirstIsKept) {
  for (const bool stream : {false, true}) {
    OpenAiCalls asked = CallsWithTools(stream);
    asked.one_tool_call = true;
    const std::vector<Json> events = EventsOf<Json>(
        asked, {StartedWith(7), TextOf("Wait. <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool"),
                TextOf("_call>{\"name\":\"g\",\"arguments\":{}}</tool_call> Done."),
                FinishedWith("!", v1::FINISH_REASON_STOP, 7, 3, 2)});
    std::string content;
    std::vector<std::string> names;
    for (const Json& event : events) {
      if (event["choices"].empty()) continue;
      const Json said = event["choices"][0][stream ? "delta" : "message"];
      if (said.contains("content")) content += said["content"].get<std::string>();
      if (!said.contains("tool_calls")) continue;
      for (const Json& call : said["tool_calls"]) names.push_back(call["function"]["name"]);
    }
    EXPECT_EQ(content, "Wait. ");
    EXPECT_THAT(names, ElementsAre("f"));
    EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
  }
}

TEST(ToolCallsAnswer, CallsOfToolsAreStreamedWithTheirIndex) {
  std::vector<Json> events =
      EventsOf<Json>(CallsWithTools(true), {StartedWith(7), TextOf("<think>Hm.</think>Let me"), TextOf(" see. <tool_"),
                                            TextOf("call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"),
                                            TextOf("<tool_call>{\"name\":\"g\",\"arguments\":{}}"),
                                            FinishedWith("</tool_call>", v1::FINISH_REASON_STOP, 7, 3, 2)});
  std::vector<Json> deltas;
  for (Json& event : events) {
    Json& delta = event["choices"][0]["delta"];
    if (delta.contains("tool_calls")) TakeCallId(delta["tool_calls"][0]);
    deltas.push_back(delta);
  }
  EXPECT_THAT(deltas, ElementsAre(Json::parse(R"({"role":"assistant","content":""})"),
                                  Json::parse(R"({"reasoning_content":"Hm."})"), Json::parse(R"({"content":"Let me"})"),
                                  Json::parse(R"({"content":" see. "})"),
                                  Json::parse(R"({"tool_calls":[{"index":0,"type":"function",
                              "function":{"name":"f","arguments":"{}"}}]})"),
                                  Json::parse(R"({"tool_calls":[{"index":1,"type":"function",
                              "function":{"name":"g","arguments":"{}"}}]})"),
                                  Json::object()));
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST(ToolCallsAnswer, ArgumentsOfACallAreStreamedAsTheyCome) {
  std::vector<Json> events = EventsOf<Json>(
      CallsWithTools(true), {StartedWith(7), TextOf("<tool_call>{\"name\":\"f\","), TextOf("\"arguments\":{\"a"),
                             TextOf("\":\"b\"}"), TextOf("}</tool_call>\n<tool_call>{\"name\":\"g\",\"arg"),
                             TextOf("uments\":{}}</tool_call>"), FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  std::vector<Json> calls;
  for (Json& event : events) {
    Json& delta = event["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    for (Json& call : delta["tool_calls"]) {
      if (call.contains("id")) TakeCallId(call);
      calls.push_back(call);
    }
  }
  EXPECT_THAT(calls, ElementsAre(Json::parse(R"({"index":0,"type":"function",
                                     "function":{"name":"f","arguments":"{\"a"}})"),
                                 Json::parse(R"({"index":0,"function":{"arguments":"\":\"b\"}"}})"),
                                 Json::parse(R"({"index":1,"type":"function",
                                     "function":{"name":"g","arguments":"{}"}})")));
}

TEST(ToolCallsAnswer, CallsOfAListAreStreamedWithIdsAndIndices) {
  OpenAiCalls asked = CallsWithTools(true);
  asked.tool_format = R"(json [{"name": "NAME", "arguments": {}}])";
  std::vector<Json> events = EventsOf<Json>(
      asked, {StartedWith(7), TextOf("[{\"name\":\"f\","), TextOf("\"arguments\":{\"a"), TextOf("\":\"b\"}}"),
              TextOf(", {\"tool_name\":\"g\",\"parameters\":{}}"), FinishedWith("]", v1::FINISH_REASON_STOP, 7, 3, 2)});
  std::vector<Json> deltas;
  for (Json& event : events) {
    Json delta = event["choices"][0]["delta"];
    for (Json& call : delta["tool_calls"]) {
      if (call.contains("id")) TakeCallId(call);
      deltas.push_back(call);
    }
    EXPECT_EQ(delta.value("content", ""), "");
  }
  EXPECT_THAT(deltas, ElementsAre(Json::parse(R"({"index":0,"type":"function",
                                      "function":{"name":"f","arguments":"{\"a"}})"),
                                  Json::parse(R"({"index":0,"function":{"arguments":"\":\"b\"}"}})"),
                                  Json::parse(R"({"index":1,"type":"function",
                                      "function":{"name":"g","arguments":"{}"}})")));
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST(ToolCallsAnswer, JsonThatIsNoCallIsContentAlsoInPieces) {
  OpenAiCalls asked = CallsWithTools(true);
  asked.tool_format = "json";
  const std::vector<Json> events =
      EventsOf<Json>(asked, {StartedWith(7), TextOf(" {\"name\": \"Al"), TextOf("ice\", \"age"),
                             FinishedWith("\": 3} \n", v1::FINISH_REASON_STOP, 7, 3, 2)});
  std::string content;
  for (const Json& event : events) content += event["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(content, " {\"name\": \"Alice\", \"age\": 3} \n");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "stop");
}

TEST(ToolCallsAnswer, JsonOfNoToolIsContentWholeAndInPieces) {
  for (const bool stream : {false, true}) {
    OpenAiCalls asked = CallsWithTools(stream);
    asked.tool_format = "llama3";
    const std::vector<Json> events =
        EventsOf<Json>(asked, {StartedWith(7), TextOf("{\"name\": \"Alice\", \"param"), TextOf("eters\": {\"age"),
                               FinishedWith("\": 3}}\n", v1::FINISH_REASON_STOP, 7, 3, 2)});
    std::string content;
    for (const Json& event : events) {
      const Json said = event["choices"][0][stream ? "delta" : "message"];
      content += said.value("content", "");
      EXPECT_FALSE(said.contains("tool_calls"));
    }
    EXPECT_EQ(content, "{\"name\": \"Alice\", \"parameters\": {\"age\": 3}}\n");
    EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "stop");
  }
}

TEST(ToolCallsAnswer, ACallThatWasCutOffInItsArgumentsIsACall) {
  const std::vector<Json> events =
      EventsOf<Json>(CallsWithTools(false), {StartedWith(7), TextOf("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":"),
                                             FinishedWith("", v1::FINISH_REASON_LENGTH, 7, 3, 2)});
  EXPECT_EQ(events[0]["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":");
  EXPECT_EQ(events[0]["choices"][0]["finish_reason"], "length");
}

TEST(ToolCallsAnswer, ACallThatAStopStringCutOffEndsWithStop) {
  const std::string call = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":";
  for (const bool stream : {false, true}) {
    for (const auto& [rest, reason] : std::vector<std::pair<std::string, std::string>>{
             {"", "stop"}, {"{}", "stop"}, {"1}", "tool_calls"}, {"1}}", "tool_calls"}}) {
      for (const std::string before : {"", "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>"}) {
        const std::vector<Json> events = EventsOf<Json>(
            CallsWithTools(stream),
            {StartedWith(7), TextOf(before + call), FinishedWith(rest, v1::FINISH_REASON_STOP, 7, 3, 2)});
        EXPECT_EQ(events.back()["choices"][0]["finish_reason"], reason) << before << rest;
      }
    }
  }
}

TEST(ToolCallsAnswer, ACallThatWasCutOffIsContent) {
  const std::vector<Json> events = EventsOf<Json>(
      CallsWithTools(false),
      {StartedWith(7), TextOf("<tool_call>{\"name\":"), FinishedWith("", v1::FINISH_REASON_LENGTH, 7, 3, 2)});
  EXPECT_EQ(events[0]["choices"][0]["message"]["content"], "<tool_call>{\"name\":");
  EXPECT_EQ(events[0]["choices"][0]["finish_reason"], "length");
}

TEST(ToolCallsAnswer, AnAnswerThatWasCutOffBehindACallSaysSo) {
  const std::vector<Json> events = EventsOf<Json>(
      CallsWithTools(false), {StartedWith(7), TextOf("<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{"),
                              FinishedWith("", v1::FINISH_REASON_LENGTH, 7, 3, 2)});
  EXPECT_EQ(events[0]["choices"][0]["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(events[0]["choices"][0]["finish_reason"], "length");
}

TEST(ToolCallsAnswer, LogprobsGoOnWhileACallIsRead) {
  OpenAiCalls calls = CallsWithTools(true);
  calls.logprobs = true;
  v1::GenerateResponse tokens = TextOf("<tool_call>{\"name\":\"f\"");
  AddLogprobs(tokens, {{"<tool_call>", -0.5f}});
  const std::vector<Json> events =
      EventsOf<Json>(calls, {StartedWith(7), tokens, FinishedWith("}", v1::FINISH_REASON_STOP, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[1]["choices"][0]["delta"], Json::parse(R"({"content":""})"));
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["content"].size(), 1u);
  EXPECT_TRUE(events[2]["choices"][0]["delta"].contains("tool_calls"));
}

}  // namespace
}  // namespace runahead
