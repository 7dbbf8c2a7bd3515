// Answers as the field writes them, whole and streamed.
#include "server/gateway/openai/answer.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

OpenAiCalls CallsOf(bool chat, bool stream, int choices = 1, int prompts = 1) {
  OpenAiCalls calls;
  calls.chat = chat;
  calls.stream = stream;
  calls.model = "tiny";
  calls.choices_per_prompt = choices;
  calls.calls.resize(static_cast<size_t>(prompts));
  return calls;
}

OpenAiCalls EchoOf(const std::string& prompt, bool stream) {
  OpenAiCalls calls = CallsOf(false, stream);
  calls.calls[0].set_prompt(prompt);
  calls.echo = true;
  return calls;
}

v1::GenerateResponse OfAnswer(int answer, v1::GenerateResponse response) {
  if (response.has_started()) response.mutable_started()->set_answer(answer);
  if (response.has_tokens()) response.mutable_tokens()->set_answer(answer);
  if (response.has_finished()) response.mutable_finished()->set_answer(answer);
  return response;
}

v1::GenerateResponse StartedWith(uint64_t seed) {
  v1::GenerateResponse response;
  v1::Started& started = *response.mutable_started();
  started.set_request_id("r-1");
  started.set_seed(seed);
  started.mutable_plan()->set_schedule("kvr");
  started.mutable_plan()->add_workers("p0");
  started.mutable_plan()->add_workers("p1");
  started.mutable_plan()->add_parts(3);
  started.mutable_plan()->add_parts(4);
  started.mutable_plan()->set_decode_worker("d0");
  return response;
}

v1::GenerateResponse TextOf(const std::string& text) {
  v1::GenerateResponse response;
  response.mutable_tokens()->add_ids(5);
  response.mutable_tokens()->set_text(text);
  return response;
}

v1::GenerateResponse FinishedWith(const std::string& text, v1::FinishReason reason, int prompt, int completion,
                                  int cached) {
  v1::GenerateResponse response;
  v1::Finished& finished = *response.mutable_finished();
  finished.set_text(text);
  finished.set_reason(reason);
  finished.mutable_usage()->set_prompt_tokens(prompt);
  finished.mutable_usage()->set_completion_tokens(completion);
  finished.mutable_usage()->set_cached_prompt_tokens(cached);
  finished.mutable_timing()->set_ttft_s(0.5);
  finished.mutable_timing()->set_tpot_s(0.25);
  (*finished.mutable_timing()->mutable_stages())["prefill"] = 0.375;
  (*finished.mutable_timing()->mutable_stages())["queue"] = 0.125;
  return response;
}

void AddLogprobs(v1::GenerateResponse& response, const std::vector<std::pair<std::string, float>>& tops) {
  v1::TokenLogprobs& logprobs = *response.mutable_tokens()->add_logprobs();
  for (const auto& [text, logprob] : tops) {
    v1::TokenLogprob& top = *logprobs.add_top();
    top.set_text(text);
    top.set_logprob(logprob);
  }
}

// All events of one choice's responses, then of the end.
std::vector<Json> EventsOf(const OpenAiCalls& calls, const std::vector<v1::GenerateResponse>& responses) {
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(calls, "id-1", 1700000000);
  std::vector<Json> events;
  for (const v1::GenerateResponse& response : responses) {
    for (const std::string& event : answer->Add(0, response)) events.push_back(Json::parse(event));
  }
  for (const std::string& event : answer->Finish()) events.push_back(Json::parse(event));
  return events;
}

const char kService[] = R"({"request_id":"r-1","seed":7,"ttft_s":0.5,"tpot_s":0.25,
    "stages":{"queue":0.125,"prefill":0.375},"failovers":0,
    "plan":{"schedule":"kvr","workers":["p0","p1"],"parts":[3,4],"decode_worker":"d0","known_tokens":0}})";

const char kUsage[] = R"({"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,
    "prompt_tokens_details":{"cached_tokens":2}})";

TEST(ChatAnswer, AWholeOneIsOneObject) {
  const std::vector<Json> events = EventsOf(
      CallsOf(true, false),
      {StartedWith(7), TextOf("He said \"h"), TextOf("i\"\n"), FinishedWith("!", v1::FINISH_REASON_STOP, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(1));
  Json expected = Json::parse(R"({"id":"id-1","object":"chat.completion","created":1700000000,"model":"tiny",
      "system_fingerprint":null,"choices":[{"index":0,"message":{"role":"assistant","content":"He said \"hi\"\n!",
      "refusal":null},"logprobs":null,"finish_reason":"stop"}]})");
  expected["usage"] = Json::parse(kUsage);
  expected["runahead"] = Json::parse(kService);
  EXPECT_EQ(events[0], expected);
}

TEST(ChatAnswer, AStreamedOneBeginsWithTheRoleAndEndsWithTheReason) {
  OpenAiCalls calls = CallsOf(true, true);
  calls.include_usage = true;
  std::vector<Json> events = EventsOf(calls, {StartedWith(7), TextOf("He"), TextOf(""), TextOf("y"),
                                              FinishedWith(".", v1::FINISH_REASON_LENGTH, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(6));
  const Json last_service = events[4]["runahead"];
  EXPECT_EQ(last_service, Json::parse(kService));
  events[4].erase("runahead");
  std::vector<Json> choices;
  for (size_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(events[i].contains("usage"));
    EXPECT_EQ(events[i]["usage"], nullptr);
    EXPECT_EQ(events[i]["choices"].size(), 1u);
    choices.push_back(events[i]["choices"][0]);
    events[i].erase("choices");
    EXPECT_EQ(events[i], Json::parse(R"({"id":"id-1","object":"chat.completion.chunk","created":1700000000,
        "model":"tiny","system_fingerprint":null,"usage":null})"));
  }
  const auto choice = [](const char* delta, const char* reason) {
    return Json{
        {"index", 0}, {"delta", Json::parse(delta)}, {"logprobs", nullptr}, {"finish_reason", Json::parse(reason)}};
  };
  EXPECT_THAT(choices, ElementsAre(choice(R"({"role":"assistant","content":""})", "null"),
                                   choice(R"({"content":"He"})", "null"), choice(R"({"content":"y"})", "null"),
                                   choice(R"({"content":"."})", "null"), choice("{}", "\"length\"")));
  EXPECT_EQ(events[5]["choices"], Json::array());
  EXPECT_EQ(events[5]["usage"], Json::parse(kUsage));
  EXPECT_EQ(events[5]["id"], "id-1");
}

TEST(ChatAnswer, WithoutIncludeUsageNothingIsSaidOfIt) {
  const std::vector<Json> events =
      EventsOf(CallsOf(true, true), {StartedWith(7), FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(2));
  for (const Json& event : events) EXPECT_FALSE(event.contains("usage")) << event;
}

TEST(ChatAnswer, LogprobsAreTheLikeliestInFallingOrder) {
  OpenAiCalls calls = CallsOf(true, false);
  calls.logprobs = true;
  calls.top_logprobs = 2;
  v1::GenerateResponse tokens = TextOf("a b");
  AddLogprobs(tokens, {{"a", -0.5f}, {"x", -1.5f}, {"y", -2.5f}});   // likeliest
  AddLogprobs(tokens, {{"b", -9.0f}, {"x", -0.25f}, {"y", -3.5f}});  // none of the two likeliest
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), tokens, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0]["choices"][0]["logprobs"], Json::parse(R"({"refusal":null,"content":[
      {"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[
          {"token":"a","logprob":-0.5,"bytes":[97]},{"token":"x","logprob":-1.5,"bytes":[120]}]},
      {"token":"b","logprob":-9.0,"bytes":[98],"top_logprobs":[
          {"token":"x","logprob":-0.25,"bytes":[120]},{"token":"y","logprob":-3.5,"bytes":[121]}]}]})"));
}

TEST(ChatAnswer, LogprobsOfTokensWithoutTextAreNotLost) {
  OpenAiCalls calls = CallsOf(true, true);
  calls.logprobs = true;
  v1::GenerateResponse half = TextOf("");
  AddLogprobs(half, {{"\xef\xbf\xbd", -1.0f}});
  half.mutable_tokens()->mutable_logprobs(0)->mutable_top(0)->set_bytes("\xc3");
  v1::GenerateResponse rest = TextOf("\xc3\xa4");
  AddLogprobs(rest, {{"\xef\xbf\xbd", -2.0f}});
  rest.mutable_tokens()->mutable_logprobs(0)->mutable_top(0)->set_bytes("\xa4");
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), half, rest, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[1]["choices"][0]["delta"], Json::parse(R"({"content":""})"));
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["content"][0]["bytes"], Json::parse("[195]"));
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["content"][0]["top_logprobs"], Json::array());
  EXPECT_EQ(events[2]["choices"][0]["delta"], Json::parse(R"({"content":"ä"})"));
  EXPECT_EQ(events[2]["choices"][0]["logprobs"]["content"].size(), 1u);
  EXPECT_EQ(events[3]["choices"][0]["logprobs"], nullptr);
}

TEST(ChatAnswer, LogprobsThatAreNotAskedForAreNotWritten) {
  v1::GenerateResponse tokens = TextOf("a");
  AddLogprobs(tokens, {{"a", -0.5f}});
  const std::vector<Json> events =
      EventsOf(CallsOf(true, true), {StartedWith(7), tokens, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  EXPECT_EQ(events[1]["choices"][0]["logprobs"], nullptr);
}

TEST(ChatAnswer, AProbabilityOfNothingIsANumberToo) {
  OpenAiCalls calls = CallsOf(true, false);
  calls.logprobs = true;
  v1::GenerateResponse tokens = TextOf("a");
  AddLogprobs(tokens, {{"a", -std::numeric_limits<float>::infinity()}});
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), tokens, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["content"][0]["logprob"], -9999);
}

OpenAiCalls CallsWithTools(bool stream) {
  OpenAiCalls calls = CallsOf(true, stream);
  calls.tool_format = "hermes";
  calls.reasoning_format = "think";
  return calls;
}

// The ids of calls are drawn: they are checked, and taken away.
void TakeCallId(Json& call) {
  EXPECT_THAT(call["id"].get<std::string>(), ::testing::MatchesRegex("call_[0-9a-f]{16}"));
  call.erase("id");
}

TEST(ChatAnswer, CallsOfToolsAndThoughtsStandApart) {
  std::vector<Json> events = EventsOf(
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

TEST(ChatAnswer, CallsOfToolsAreStreamedWithTheirIndex) {
  std::vector<Json> events =
      EventsOf(CallsWithTools(true), {StartedWith(7), TextOf("<think>Hm.</think>Let me"), TextOf(" see. <tool_"),
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

TEST(ChatAnswer, ArgumentsOfACallAreStreamedAsTheyCome) {
  std::vector<Json> events = EventsOf(
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

TEST(ChatAnswer, ACallThatWasCutOffInItsArgumentsIsACall) {
  const std::vector<Json> events =
      EventsOf(CallsWithTools(false), {StartedWith(7), TextOf("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":"),
                                       FinishedWith("", v1::FINISH_REASON_LENGTH, 7, 3, 2)});
  EXPECT_EQ(events[0]["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":");
  EXPECT_EQ(events[0]["choices"][0]["finish_reason"], "length");
}

TEST(ChatAnswer, ACallThatWasCutOffIsContent) {
  const std::vector<Json> events =
      EventsOf(CallsWithTools(false),
               {StartedWith(7), TextOf("<tool_call>{\"name\":"), FinishedWith("", v1::FINISH_REASON_LENGTH, 7, 3, 2)});
  EXPECT_EQ(events[0]["choices"][0]["message"]["content"], "<tool_call>{\"name\":");
  EXPECT_EQ(events[0]["choices"][0]["finish_reason"], "length");
}

TEST(ChatAnswer, AnAnswerThatWasCutOffBehindACallSaysSo) {
  const std::vector<Json> events =
      EventsOf(CallsWithTools(false), {StartedWith(7), TextOf("<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{"),
                                       FinishedWith("", v1::FINISH_REASON_LENGTH, 7, 3, 2)});
  EXPECT_EQ(events[0]["choices"][0]["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(events[0]["choices"][0]["finish_reason"], "length");
}

TEST(ChatAnswer, LogprobsGoOnWhileACallIsRead) {
  OpenAiCalls calls = CallsWithTools(true);
  calls.logprobs = true;
  v1::GenerateResponse tokens = TextOf("<tool_call>{\"name\":\"f\"");
  AddLogprobs(tokens, {{"<tool_call>", -0.5f}});
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), tokens, FinishedWith("}", v1::FINISH_REASON_STOP, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[1]["choices"][0]["delta"], Json::parse(R"({"content":""})"));
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["content"].size(), 1u);
  EXPECT_TRUE(events[2]["choices"][0]["delta"].contains("tool_calls"));
}

TEST(Answer, ChoicesAreToldApartAndTheirPromptCountsOnce) {
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(CallsOf(true, false, 2), "id-1", 1);
  for (const int choice : {1, 0}) {
    EXPECT_FALSE(answer->IsComplete());
    for (const v1::GenerateResponse& response :
         {StartedWith(static_cast<uint64_t>(choice)), TextOf(choice == 0 ? "zero" : "one"),
          FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2 + choice)}) {
      EXPECT_THAT(answer->Add(0, OfAnswer(choice, response)), IsEmpty());
    }
  }
  EXPECT_TRUE(answer->IsComplete());
  const std::vector<std::string> texts = answer->Finish();
  ASSERT_THAT(texts, SizeIs(1));
  const Json whole = Json::parse(texts[0]);
  ASSERT_EQ(whole["choices"].size(), 2u);
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "zero");
  EXPECT_EQ(whole["choices"][1]["index"], 1);
  EXPECT_EQ(whole["choices"][1]["message"]["content"], "one");
  EXPECT_EQ(whole["usage"], Json::parse(R"({"prompt_tokens":7,"completion_tokens":6,"total_tokens":13,
      "prompt_tokens_details":{"cached_tokens":2}})"));
  EXPECT_EQ(whole["runahead"][0]["seed"], 0);
  EXPECT_EQ(whole["runahead"][1]["seed"], 1);
}

TEST(Answer, EachPromptCounts) {
  OpenAiCalls calls = CallsOf(false, true, 2, 2);
  calls.include_usage = true;
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(calls, "id-1", 1);
  std::vector<int> indices;
  for (const int prompt : {1, 0}) {
    for (const int choice : {0, 1}) {
      for (const std::string& event :
           answer->Add(prompt, OfAnswer(choice, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)))) {
        indices.push_back(Json::parse(event)["choices"][0]["index"]);
      }
    }
  }
  EXPECT_THAT(indices, ElementsAre(2, 3, 0, 1));
  EXPECT_EQ(Json::parse(answer->Finish()[0])["usage"]["prompt_tokens"], 14);
}

TEST(Answer, WhatAnOlderRouterLeavesOutIsMissed) {
  const v1::GenerateResponse finished = FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2);
  const std::unique_ptr<OpenAiAnswer> one_of_two = MakeAnswer(CallsOf(true, false, 2), "id-1", 1);
  one_of_two->Add(0, finished);
  EXPECT_FALSE(one_of_two->IsComplete());
  OpenAiCalls calls = EchoOf("Once", false);
  calls.logprobs = true;
  const std::unique_ptr<OpenAiAnswer> unscored = MakeAnswer(calls, "id-1", 1);
  unscored->Add(0, finished);
  EXPECT_FALSE(unscored->IsComplete());
}

TEST(Answer, AnswersThatNobodyAskedForAreLeftOut) {
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(CallsOf(true, true, 2), "id-1", 1);
  for (const int other : {-1, 2}) EXPECT_THAT(answer->Add(0, OfAnswer(other, TextOf("a"))), IsEmpty());
}

TEST(Answer, ThePlanIsThatOfTheEnd) {
  v1::GenerateResponse finished = FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2);
  finished.mutable_finished()->mutable_plan()->set_schedule("single");
  finished.mutable_finished()->set_failovers(2);
  const std::vector<Json> events = EventsOf(CallsOf(true, false), {StartedWith(7), finished});
  EXPECT_EQ(events[0]["runahead"]["plan"]["schedule"], "single");
  EXPECT_EQ(events[0]["runahead"]["failovers"], 2);
}

TEST(CompletionAnswer, AWholeOneIsOneObject) {
  const OpenAiCalls calls = EchoOf("Once", false);
  const std::vector<Json> events = EventsOf(
      calls, {StartedWith(7), TextOf(" upon"), TextOf(""), FinishedWith(" a", v1::FINISH_REASON_LENGTH, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(1));
  Json expected = Json::parse(R"({"id":"id-1","object":"text_completion","created":1700000000,"model":"tiny",
      "system_fingerprint":null,"choices":[{"index":0,"text":"Once upon a","logprobs":null,"finish_reason":"length"}]})");
  expected["usage"] = Json::parse(kUsage);
  expected["runahead"] = Json::parse(kService);
  EXPECT_EQ(events[0], expected);
}

TEST(CompletionAnswer, AStreamedOneSaysTextAsItComes) {
  const OpenAiCalls calls = EchoOf("Once", true);
  std::vector<Json> events = EventsOf(
      calls, {StartedWith(7), TextOf(" upon"), TextOf(""), FinishedWith(" a", v1::FINISH_REASON_STOP, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(3));
  std::vector<std::string> texts;
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "text_completion");
    texts.push_back(event["choices"][0]["text"]);
  }
  EXPECT_THAT(texts, ElementsAre("Once", " upon", " a"));
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], nullptr);
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events[2]["runahead"], Json::parse(kService));
}

TEST(CompletionAnswer, OffsetsAreCharactersFromTheBeginOfTheText) {
  OpenAiCalls calls = CallsOf(false, false);
  calls.logprobs = true;
  calls.top_logprobs = 1;
  v1::GenerateResponse first = TextOf("\xe2\x82\xac");
  AddLogprobs(first, {{"\xef\xbf\xbd", -0.5f}});
  first.mutable_tokens()->mutable_logprobs(0)->mutable_top(0)->set_bytes("\xe2\x82");
  AddLogprobs(first, {{"\xef\xbf\xbd", -0.25f}});
  first.mutable_tokens()->mutable_logprobs(1)->mutable_top(0)->set_bytes("\xac");
  v1::GenerateResponse second = TextOf("bc");
  AddLogprobs(second, {{"bc", -2.0f}, {"d", -1.0f}});
  v1::GenerateResponse third = TextOf("e");
  AddLogprobs(third, {{"e", -1.0f}, {"f", -2.0f}});
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), first, second, third, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  EXPECT_EQ(events[0]["choices"][0]["logprobs"], Json::parse(R"({"tokens":["\ufffd","\ufffd","bc","e"],
      "token_logprobs":[-0.5,-0.25,-2.0,-1.0],
      "top_logprobs":[{"\ufffd":-0.5},{"\ufffd":-0.25},{"d":-1.0,"bc":-2.0},{"e":-1.0}],"text_offset":[0,0,1,3]})"));
}

TEST(CompletionAnswer, OffsetsGoOnFromEventToEvent) {
  OpenAiCalls calls = CallsOf(false, true);
  calls.logprobs = true;
  v1::GenerateResponse first = TextOf("ab");
  AddLogprobs(first, {{"ab", -0.5f}});
  v1::GenerateResponse second = TextOf("");
  AddLogprobs(second, {{"c", -0.5f}});
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), first, second, FinishedWith("c", v1::FINISH_REASON_STOP, 7, 3, 2)});
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["text_offset"], Json::parse("[0]"));
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["text_offset"], Json::parse("[2]"));
  EXPECT_EQ(events[1]["choices"][0]["text"], "");
  EXPECT_EQ(events[2]["choices"][0]["text"], "c");
}

// {text, bytes where they are not the text}, with log probability -1 for the first, -2 for the next one, and so on.
v1::GenerateResponse PromptOf(int index, const std::vector<std::pair<std::string, std::string>>& tokens) {
  v1::GenerateResponse response;
  v1::PromptLogprobs& prompt = *response.mutable_prompt_logprobs();
  prompt.set_index(index);
  for (const auto& [text, bytes] : tokens) {
    v1::TokenLogprob& token = *prompt.add_logprobs()->add_top();
    token.set_text(text);
    token.set_bytes(bytes);
    token.set_logprob(-static_cast<float>(prompt.logprobs_size()));
  }
  return response;
}

TEST(CompletionAnswer, AScoredPromptStandsBeforeTheAnswerWithItsTokens) {
  OpenAiCalls calls = EchoOf("Once up", false);
  calls.logprobs = true;
  v1::GenerateResponse tokens = TextOf("on");
  AddLogprobs(tokens, {{"on", -0.5f}});
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), PromptOf(0, {{"<s>", ""}, {"Once", ""}}), PromptOf(2, {{" up", ""}}), tokens,
                       FinishedWith("", v1::FINISH_REASON_LENGTH, 3, 1, 0)});
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0]["choices"][0]["text"], "Once upon");
  // The model's begin token takes no place in the text.
  EXPECT_EQ(events[0]["choices"][0]["logprobs"], Json::parse(R"({"tokens":["<s>","Once"," up","on"],
      "token_logprobs":[null,-2.0,-1.0,-0.5],"top_logprobs":[null,{"Once":-2.0},{" up":-1.0},{"on":-0.5}],
      "text_offset":[0,0,4,7]})"));
}

TEST(CompletionAnswer, AScoredPromptWithoutBeginTokenHasItsFirstTokensPlace) {
  OpenAiCalls calls = EchoOf("Once up", false);
  calls.logprobs = true;
  const std::vector<Json> events = EventsOf(calls, {StartedWith(7), PromptOf(0, {{"Once", ""}, {" up", ""}}),
                                                    FinishedWith("", v1::FINISH_REASON_LENGTH, 2, 0, 0)});
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["text_offset"], Json::parse("[0,4]"));
  EXPECT_EQ(events[0]["choices"][0]["text"], "Once up");
}

TEST(CompletionAnswer, ABlankThatTheModelPutsBeforeATextIsNoneOfIt) {
  for (const bool begin_token : {false, true}) {
    OpenAiCalls calls = EchoOf("Once up", false);
    calls.logprobs = true;
    std::vector<std::pair<std::string, std::string>> tokens = {{" Once", ""}, {" up", ""}};
    if (begin_token) tokens.insert(tokens.begin(), {"<s>", ""});
    const std::vector<Json> events =
        EventsOf(calls, {StartedWith(7), PromptOf(0, tokens), FinishedWith("", v1::FINISH_REASON_LENGTH, 3, 0, 0)});
    EXPECT_EQ(events[0]["choices"][0]["logprobs"]["text_offset"], Json::parse(begin_token ? "[0,0,4]" : "[0,4]"));
  }
}

TEST(CompletionAnswer, OfAPromptThatIsCutTheTokensSayTheText) {
  OpenAiCalls calls = EchoOf("a b c d", false);
  calls.logprobs = true;
  calls.calls[0].set_truncate_prompt(2);
  const std::vector<Json> events = EventsOf(calls, {StartedWith(7), PromptOf(0, {{" c", ""}, {" d", ""}}),
                                                    FinishedWith("", v1::FINISH_REASON_LENGTH, 2, 0, 0)});
  EXPECT_EQ(events[0]["choices"][0]["text"], " c d");
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["text_offset"], Json::parse("[0,2]"));
}

TEST(CompletionAnswer, AScoredPromptOfIdsHasTheTextOfItsTokens) {
  for (const bool stream : {false, true}) {
    OpenAiCalls calls = CallsOf(false, stream);
    calls.echo = calls.logprobs = true;
    calls.calls[0].mutable_token_ids()->add_ids(5);
    // A character whose bytes come in two messages.
    const std::vector<Json> events =
        EventsOf(calls, {StartedWith(7), PromptOf(0, {{"a", ""}, {"\xef\xbf\xbd", "\xe2\x82"}}),
                         PromptOf(2, {{"\xef\xbf\xbd", "\xac"}}), FinishedWith("", v1::FINISH_REASON_LENGTH, 3, 0, 0)});
    std::vector<std::string> texts;
    for (const Json& event : events) texts.push_back(event["choices"][0]["text"]);
    using Texts = std::vector<std::string>;
    EXPECT_EQ(texts, stream ? Texts({"a", "\xe2\x82\xac", ""}) : Texts({"a\xe2\x82\xac"}));
    EXPECT_EQ(events[0]["choices"][0]["logprobs"]["text_offset"][1], 1);
  }
}

TEST(CompletionAnswer, AStreamSaysAScoredPromptOnceItsTokensCome) {
  OpenAiCalls calls = EchoOf("Once", true);
  calls.logprobs = true;
  calls.choices_per_prompt = 2;
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(calls, "id-1", 1);
  EXPECT_THAT(answer->Add(0, StartedWith(7)), IsEmpty());
  // Each choice has the prompt, the one that has not started too.
  const std::vector<std::string> events = answer->Add(0, PromptOf(0, {{"Once", ""}}));
  ASSERT_THAT(events, SizeIs(2));
  for (size_t i = 0; i < 2; ++i) {
    const Json choice = Json::parse(events[i])["choices"][0];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["text"], "Once");
    EXPECT_EQ(choice["logprobs"]["tokens"], Json::parse(R"(["Once"])"));
  }
}

// Of a token: its id, then those of others; {id, log probability}, and the text "t" with the id.
void AddScored(v1::GenerateResponse& response, const std::vector<std::pair<int, float>>& tops) {
  v1::TokenLogprobs& logprobs = *response.mutable_prompt_logprobs()->add_logprobs();
  for (const auto& [id, logprob] : tops) {
    v1::TokenLogprob& top = *logprobs.add_top();
    top.set_id(id);
    top.set_text(absl::StrCat("t", id));
    top.set_logprob(logprob);
  }
}

// Token 7 is the likeliest of its place, 8 the second of equal ones, 9 none of the likeliest.
std::vector<v1::GenerateResponse> ScoredPrompt() {
  v1::GenerateResponse first;
  AddScored(first, {{5, 0.0f}});
  AddScored(first, {{7, -0.5f}, {1, -1.5f}, {2, -2.5f}});
  v1::GenerateResponse second;
  second.mutable_prompt_logprobs()->set_index(2);
  AddScored(second, {{8, -1.0f}, {1, -0.25f}, {2, -1.0f}});
  AddScored(second, {{9, -std::numeric_limits<float>::infinity()}, {1, -0.5f}, {2, -1.0f}});
  return {first, second};
}

const char kScored[] = R"([null,
    {"7":{"logprob":-0.5,"rank":1,"decoded_token":"t7"},"1":{"logprob":-1.5,"rank":2,"decoded_token":"t1"}},
    {"8":{"logprob":-1.0,"rank":2,"decoded_token":"t8"},"1":{"logprob":-0.25,"rank":1,"decoded_token":"t1"}},
    {"9":{"logprob":-9999.0,"rank":null,"decoded_token":"t9"},"1":{"logprob":-0.5,"rank":1,"decoded_token":"t1"},
     "2":{"logprob":-1.0,"rank":2,"decoded_token":"t2"}}])";

TEST(ChatAnswer, TheListOfThePromptsTokensStandsBesideTheChoices) {
  OpenAiCalls calls = CallsOf(true, false, 2);
  calls.prompt_logprobs = 2;
  const std::vector<v1::GenerateResponse> prompt = ScoredPrompt();
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), prompt[0], prompt[1], FinishedWith("", v1::FINISH_REASON_LENGTH, 4, 0, 0)});
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0]["prompt_logprobs"], Json::parse(kScored));
  for (const Json& choice : events[0]["choices"]) EXPECT_FALSE(choice.contains("prompt_logprobs"));
}

TEST(CompletionAnswer, TheListOfThePromptsTokensStandsInEachChoice) {
  OpenAiCalls calls = CallsOf(false, false, 2);
  calls.prompt_logprobs = 2;
  const std::vector<v1::GenerateResponse> prompt = ScoredPrompt();
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), prompt[0], prompt[1], FinishedWith("", v1::FINISH_REASON_LENGTH, 4, 0, 0)});
  ASSERT_THAT(events[0]["choices"], SizeIs(2));
  for (const Json& choice : events[0]["choices"]) {
    EXPECT_EQ(choice["prompt_logprobs"], Json::parse(kScored));
    EXPECT_EQ(choice["logprobs"], nullptr);
    EXPECT_EQ(choice["text"], "");
  }
  EXPECT_FALSE(events[0].contains("prompt_logprobs"));
}

TEST(CompletionAnswer, TheListBeginsWithThePromptsOwnTokens) {
  OpenAiCalls calls = CallsOf(false, false);
  calls.prompt_logprobs = 2;
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(calls, "id-1", 1);
  for (const v1::GenerateResponse& response : ScoredPrompt()) answer->Add(0, response);
  answer->Add(0, FinishedWith("", v1::FINISH_REASON_LENGTH, 4, 0, 0));
  EXPECT_THAT(answer->Finish()[0], ::testing::HasSubstr(R"({"8":{"logprob":-1,"rank":2,"decoded_token":"t8"},"1":)"));
}

TEST(CompletionAnswer, WithoutAlternativesTheLikeliestTokenHasARank) {
  OpenAiCalls calls = CallsOf(false, false);
  calls.prompt_logprobs = 0;
  v1::GenerateResponse prompt;  // with one alternative, as the router is asked
  AddScored(prompt, {{5, 0.0f}});
  AddScored(prompt, {{7, -0.5f}});
  AddScored(prompt, {{8, -1.0f}, {1, -0.25f}});
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(3), prompt, FinishedWith("", v1::FINISH_REASON_LENGTH, 3, 0, 0)});
  EXPECT_EQ(events[0]["choices"][0]["prompt_logprobs"],
            Json::parse(R"([null,{"7":{"logprob":-0.5,"rank":1,"decoded_token":"t7"}},
                            {"8":{"logprob":-1.0,"rank":null,"decoded_token":"t8"}}])"));
}

TEST(CompletionAnswer, WithoutAlternativesTheListHasThePromptsOwnTokensAlone) {
  OpenAiCalls calls = EchoOf("t5t7t8t9", false);
  calls.logprobs = true;
  calls.top_logprobs = 2;
  calls.prompt_logprobs = 0;
  const std::vector<v1::GenerateResponse> prompt = ScoredPrompt();
  const std::vector<Json> events =
      EventsOf(calls, {StartedWith(7), prompt[0], prompt[1], FinishedWith("", v1::FINISH_REASON_LENGTH, 4, 0, 0)});
  const Json choice = events[0]["choices"][0];
  EXPECT_EQ(choice["prompt_logprobs"][1], Json::parse(R"({"7":{"logprob":-0.5,"rank":1,"decoded_token":"t7"}})"));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1], Json::parse(R"({"t7":-0.5,"t1":-1.5})"));
}

TEST(Answer, AListThatAnOlderRouterLeavesOutIsMissed) {
  for (const bool chat : {false, true}) {
    OpenAiCalls calls = CallsOf(chat, false);
    calls.prompt_logprobs = 0;
    const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(calls, "id-1", 1);
    answer->Add(0, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2));
    EXPECT_FALSE(answer->IsComplete());
  }
}

TEST(Answer, ANewerRoutersEventsAreLeftOut) {
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(CallsOf(true, true), "id-1", 1);
  EXPECT_THAT(answer->Add(0, v1::GenerateResponse()), IsEmpty());
}

}  // namespace
}  // namespace runahead
