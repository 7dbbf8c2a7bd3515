// The list of the prompt's tokens with their log probabilities, as vLLM writes it.
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/answer.h"
#include "tests/server/gateway/openai/answer_events.h"

namespace runahead {
namespace {

using testing::CallsOf;
using testing::EchoOf;
using testing::EventsOf;
using testing::FinishedWith;
using ::testing::SizeIs;
using testing::StartedWith;
using Json = nlohmann::json;

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
  const std::vector<Json> events = EventsOf<Json>(
      calls, {StartedWith(7), prompt[0], prompt[1], FinishedWith("", v1::FINISH_REASON_LENGTH, 4, 0, 0)});
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0]["prompt_logprobs"], Json::parse(kScored));
  for (const Json& choice : events[0]["choices"]) EXPECT_FALSE(choice.contains("prompt_logprobs"));
}

TEST(CompletionAnswer, TheListOfThePromptsTokensStandsInEachChoice) {
  OpenAiCalls calls = CallsOf(false, false, 2);
  calls.prompt_logprobs = 2;
  const std::vector<v1::GenerateResponse> prompt = ScoredPrompt();
  const std::vector<Json> events = EventsOf<Json>(
      calls, {StartedWith(7), prompt[0], prompt[1], FinishedWith("", v1::FINISH_REASON_LENGTH, 4, 0, 0)});
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
      EventsOf<Json>(calls, {StartedWith(3), prompt, FinishedWith("", v1::FINISH_REASON_LENGTH, 3, 0, 0)});
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
  const std::vector<Json> events = EventsOf<Json>(
      calls, {StartedWith(7), prompt[0], prompt[1], FinishedWith("", v1::FINISH_REASON_LENGTH, 4, 0, 0)});
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

}  // namespace
}  // namespace runahead
