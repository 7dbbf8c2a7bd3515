// Answers to completions, and what stands before them of a scored prompt.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/answer.h"
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
using ::testing::SizeIs;
using testing::StartedWith;
using testing::TextOf;
using Json = nlohmann::json;

TEST(CompletionAnswer, AWholeOneIsOneObject) {
  const OpenAiCalls calls = EchoOf("Once", false);
  const std::vector<Json> events = EventsOf<Json>(
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
  std::vector<Json> events = EventsOf<Json>(
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
      EventsOf<Json>(calls, {StartedWith(7), first, second, third, FinishedWith("", v1::FINISH_REASON_STOP, 7, 3, 2)});
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
      EventsOf<Json>(calls, {StartedWith(7), first, second, FinishedWith("c", v1::FINISH_REASON_STOP, 7, 3, 2)});
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
      EventsOf<Json>(calls, {StartedWith(7), PromptOf(0, {{"<s>", ""}, {"Once", ""}}), PromptOf(2, {{" up", ""}}),
                             tokens, FinishedWith("", v1::FINISH_REASON_LENGTH, 3, 1, 0)});
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
  const std::vector<Json> events = EventsOf<Json>(calls, {StartedWith(7), PromptOf(0, {{"Once", ""}, {" up", ""}}),
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
    const std::vector<Json> events = EventsOf<Json>(
        calls, {StartedWith(7), PromptOf(0, tokens), FinishedWith("", v1::FINISH_REASON_LENGTH, 3, 0, 0)});
    EXPECT_EQ(events[0]["choices"][0]["logprobs"]["text_offset"], Json::parse(begin_token ? "[0,0,4]" : "[0,4]"));
  }
}

TEST(CompletionAnswer, OfAPromptThatIsCutTheTokensSayTheText) {
  OpenAiCalls calls = EchoOf("a b c d", false);
  calls.logprobs = true;
  calls.calls[0].set_truncate_prompt(2);
  const std::vector<Json> events = EventsOf<Json>(calls, {StartedWith(7), PromptOf(0, {{" c", ""}, {" d", ""}}),
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
    const std::vector<Json> events = EventsOf<Json>(
        calls, {StartedWith(7), PromptOf(0, {{"a", ""}, {"\xef\xbf\xbd", "\xe2\x82"}}),
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

}  // namespace
}  // namespace runahead
