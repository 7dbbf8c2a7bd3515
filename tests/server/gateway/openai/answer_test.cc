// Answers as the field writes them, whole and streamed.
#include "server/gateway/openai/answer.h"

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/gateway/openai/answer_events.h"

namespace runahead {
namespace {

using testing::AddLogprobs;
using testing::CallsOf;
using testing::EchoOf;
using ::testing::ElementsAre;
using testing::EventsOf;
using testing::FinishedWith;
using ::testing::IsEmpty;
using testing::kService;
using testing::kUsage;
using testing::OfAnswer;
using ::testing::SizeIs;
using testing::StartedWith;
using testing::TextOf;
using Json = nlohmann::json;

TEST(ChatAnswer, AWholeOneIsOneObject) {
  const std::vector<Json> events = EventsOf<Json>(
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
  std::vector<Json> events = EventsOf<Json>(calls, {StartedWith(7), TextOf("He"), TextOf(""), TextOf("y"),
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
      EventsOf<Json>(CallsOf(true, true), {StartedWith(7), FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
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
      EventsOf<Json>(calls, {StartedWith(7), tokens, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
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
      EventsOf<Json>(calls, {StartedWith(7), half, rest, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
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
      EventsOf<Json>(CallsOf(true, true), {StartedWith(7), tokens, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  EXPECT_EQ(events[1]["choices"][0]["logprobs"], nullptr);
}

TEST(ChatAnswer, AProbabilityOfNothingIsANumberToo) {
  OpenAiCalls calls = CallsOf(true, false);
  calls.logprobs = true;
  v1::GenerateResponse tokens = TextOf("a");
  AddLogprobs(tokens, {{"a", -std::numeric_limits<float>::infinity()}});
  const std::vector<Json> events =
      EventsOf<Json>(calls, {StartedWith(7), tokens, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["content"][0]["logprob"], -9999);
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
  const std::vector<Json> events = EventsOf<Json>(CallsOf(true, false), {StartedWith(7), finished});
  EXPECT_EQ(events[0]["runahead"]["plan"]["schedule"], "single");
  EXPECT_EQ(events[0]["runahead"]["failovers"], 2);
}

TEST(Answer, ANewerRoutersEventsAreLeftOut) {
  const std::unique_ptr<OpenAiAnswer> answer = MakeAnswer(CallsOf(true, true), "id-1", 1);
  EXPECT_THAT(answer->Add(0, v1::GenerateResponse()), IsEmpty());
}

}  // namespace
}  // namespace runahead
