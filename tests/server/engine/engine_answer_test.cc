#include "server/engine/engine_answer.h"

#include <google/protobuf/text_format.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

namespace engine = vllm::grpc::engine;
using ::google::protobuf::TextFormat;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::GenerateResponse Event(const std::string& text) {
  v1::GenerateResponse event;
  EXPECT_TRUE(TextFormat::ParseFromString(text, &event)) << text;
  return event;
}

v1::GenerateRequest Request(const std::string& text) {
  v1::GenerateRequest request;
  EXPECT_TRUE(TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

// What is told of an event; an empty response where nothing is.
engine::GenerateResponse Told(EngineAnswer& answer, const std::string& event) {
  const auto told = answer.Add(Event(event));
  EXPECT_TRUE(told.ok()) << told.status();
  return told.ok() ? told->value_or(engine::GenerateResponse()) : engine::GenerateResponse();
}

constexpr char kStarted[] = "started { prompt_tokens: 9 plan { known_tokens: 4 } }";
constexpr char kStopped[] =
    "finished { reason: FINISH_REASON_STOP usage { prompt_tokens: 9 completion_tokens: 3 cached_prompt_tokens: 4 } }";

TEST(EngineAnswer, AStreamTellsNewTokensAndThenAllOfThem) {
  EngineAnswer answer(/*stream=*/true, {});
  EXPECT_FALSE(Told(answer, kStarted).has_chunk());
  const engine::GenerateStreamChunk first = Told(answer, "tokens { ids: [5, 6] text: 'ab' }").chunk();
  EXPECT_THAT(first.token_ids(), ElementsAre(5, 6));
  EXPECT_EQ(first.prompt_tokens(), 9u);
  EXPECT_EQ(first.cached_tokens(), 4u);
  EXPECT_EQ(first.completion_tokens(), 2u);
  const engine::GenerateStreamChunk second = Told(answer, "tokens { index: 2 ids: 7 }").chunk();
  EXPECT_THAT(second.token_ids(), ElementsAre(7));
  EXPECT_EQ(second.completion_tokens(), 3u);
  EXPECT_FALSE(second.has_output_logprobs());
  const engine::GenerateComplete complete = Told(answer, kStopped).complete();
  EXPECT_THAT(complete.output_ids(), ElementsAre(5, 6, 7));
  EXPECT_EQ(complete.finish_reason(), "stop");
  EXPECT_EQ(complete.prompt_tokens(), 9u);
  EXPECT_EQ(complete.completion_tokens(), 3u);
  EXPECT_EQ(complete.cached_tokens(), 4u);
}

TEST(EngineAnswer, OneThatIsNotStreamedTellsTheEndOnly) {
  EngineAnswer answer(/*stream=*/false, Request("sampling { logprobs: 1 }"));
  EXPECT_FALSE(Told(answer, kStarted).has_complete());
  const int64_t before = answer.bytes();
  EXPECT_FALSE(
      Told(answer, "tokens { ids: 5 logprobs { top { id: 5 logprob: -2 } top { id: 8 logprob: -1 } } }").has_chunk());
  EXPECT_GT(answer.bytes(), before);
  const engine::GenerateComplete complete = Told(answer, "finished { reason: FINISH_REASON_LENGTH }").complete();
  EXPECT_EQ(complete.finish_reason(), "length");
  const engine::OutputLogProbs& logprobs = complete.output_logprobs();
  EXPECT_THAT(logprobs.token_ids(), ElementsAre(5));
  EXPECT_THAT(logprobs.token_logprobs(), ElementsAre(-2));
  ASSERT_EQ(logprobs.top_logprobs_size(), 1);
  EXPECT_THAT(logprobs.top_logprobs(0).token_ids(), ElementsAre(8)) << "the likeliest one, which was not drawn";
  EXPECT_THAT(logprobs.top_logprobs(0).values(), ElementsAre(-1));
}

TEST(EngineAnswer, SeveralAnswersAreToldInTheOrderOfTheirIndices) {
  EngineAnswer answer(/*stream=*/false, Request("n: 3"));
  for (const char* const event :
       {"started { answer: 0 }", "started { answer: 1 }", "started { answer: 2 }", "tokens { ids: 5 answer: 1 }",
        "tokens { ids: 6 answer: 0 }", "tokens { ids: 7 answer: 1 }", "tokens { ids: 8 answer: 2 }"}) {
    Told(answer, event);
  }
  EXPECT_FALSE(Told(answer, "finished { answer: 1 }").has_complete()) << "the first one has not ended";
  EXPECT_FALSE(answer.Next().has_value());
  const engine::GenerateComplete first = Told(answer, "finished { answer: 0 }").complete();
  EXPECT_EQ(first.index(), 0u);
  EXPECT_THAT(first.output_ids(), ElementsAre(6));
  const auto second = answer.Next();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->complete().index(), 1u);
  EXPECT_THAT(second->complete().output_ids(), ElementsAre(5, 7));
  EXPECT_FALSE(answer.Next().has_value());
  EXPECT_EQ(Told(answer, "finished { answer: 2 }").complete().index(), 2u);
  EXPECT_FALSE(answer.Next().has_value());
  EXPECT_FALSE(Told(answer, "tokens { ids: 5 answer: 3 }").has_complete()) << "there is none of that index";
}

TEST(EngineAnswer, StreamedOnesEndWhenTheyEnd) {
  EngineAnswer answer(/*stream=*/true, Request("n: 2"));
  EXPECT_EQ(Told(answer, "tokens { ids: 5 answer: 1 }").chunk().index(), 1u);
  EXPECT_EQ(Told(answer, "finished { answer: 1 }").complete().index(), 1u);
  EXPECT_FALSE(answer.Next().has_value());
  EXPECT_EQ(Told(answer, "finished { answer: 0 }").complete().index(), 0u);
}

TEST(EngineAnswer, ThePromptsLogprobsComeOnceWithTheFirstMessage) {
  for (const bool stream : {true, false}) {
    EngineAnswer answer(stream, Request("prompt_logprobs: 1"));
    Told(answer, kStarted);
    Told(answer, "prompt_logprobs { logprobs { top { id: 3 } } }");
    Told(answer, "prompt_logprobs { index: 1 logprobs { top { id: 4 logprob: -3 } top { id: 6 logprob: -0.5 } } }");
    const engine::GenerateStreamChunk chunk = Told(answer, "tokens { ids: 5 }").chunk();
    const engine::GenerateComplete complete = Told(answer, kStopped).complete();
    EXPECT_EQ(chunk.has_input_logprobs(), stream);
    EXPECT_EQ(complete.has_input_logprobs(), !stream);
    const engine::InputLogProbs& scored = stream ? chunk.input_logprobs() : complete.input_logprobs();
    EXPECT_THAT(scored.token_ids(), ElementsAre(3, 4));
    ASSERT_EQ(scored.token_logprobs_size(), 2);
    EXPECT_FALSE(scored.token_logprobs(0).has_value()) << "nothing comes before it";
    EXPECT_EQ(scored.token_logprobs(1).value(), -3);
    EXPECT_THAT(scored.top_logprobs(0).token_ids(), IsEmpty());
    EXPECT_THAT(scored.top_logprobs(1).token_ids(), ElementsAre(6));
  }
}

TEST(EngineAnswer, CountsNoLessThanLogprobsTake) {
  for (const int tops : {1, 20}) {
    v1::TokenLogprobs scored;
    for (int i = 0; i <= tops; ++i) {
      scored.add_top()->set_id(i);
      scored.mutable_top(i)->set_logprob(-1.0F);
    }
    EngineAnswer answer(/*stream=*/false,
                        Request(absl::StrCat("prompt_logprobs: ", tops, " sampling { logprobs: ", tops, " }")));
    Told(answer, kStarted);
    v1::GenerateResponse prompt, tokens;
    for (int i = 0; i < 1000; ++i) {
      *prompt.mutable_prompt_logprobs()->add_logprobs() = scored;
      *tokens.mutable_tokens()->add_logprobs() = scored;
    }
    ASSERT_TRUE(answer.Add(prompt).ok());
    const int64_t of_prompt = answer.bytes();
    ASSERT_TRUE(answer.Add(tokens).ok());
    const int64_t of_output = answer.bytes() - of_prompt;
    const engine::GenerateComplete complete = Told(answer, kStopped).complete();
    EXPECT_GE(of_prompt, static_cast<int64_t>(complete.input_logprobs().SpaceUsedLong())) << tops;
    EXPECT_GE(of_output, static_cast<int64_t>(complete.output_logprobs().SpaceUsedLong())) << tops;
  }
}

TEST(EngineAnswer, WhereThePromptsLogprobsAreTooLongTheyAreNamed) {
  for (const bool stream : {true, false}) {
    EngineAnswer answer(stream, Request("prompt_logprobs: 20"));
    Told(answer, kStarted);
    v1::GenerateResponse prompt;
    for (int i = 0; i < 30'000; ++i) {
      v1::TokenLogprobs& scored = *prompt.mutable_prompt_logprobs()->add_logprobs();
      for (int top = 0; top < 20; ++top) {
        scored.add_top()->set_id(1 << 28);
        scored.mutable_top(top)->set_logprob(-1.0F);
      }
    }
    ASSERT_TRUE(answer.Add(prompt).ok());
    const absl::Status refused = answer.Add(Event(stream ? "tokens { ids: 5 }" : kStopped)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("fewer prompt_logprobs"));
    EXPECT_THAT(std::string(refused.message()), ::testing::Not(::testing::HasSubstr("ask for a stream")));
  }
}

TEST(EngineAnswer, ATooLongMessageIsAnErrorThatSaysWhatToDo) {
  EngineAnswer answer(/*stream=*/false, {});
  v1::GenerateResponse tokens;
  for (int i = 0; i < 1 << 20; ++i) tokens.mutable_tokens()->add_ids(1 << 28);
  ASSERT_TRUE(answer.Add(tokens).ok());
  const absl::Status refused = answer.Add(Event(kStopped)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("ask for a stream"));
}

}  // namespace
}  // namespace runahead
