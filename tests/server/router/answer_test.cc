#include "server/router/answer.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/router/answer_limits.h"
#include "server/router/response_queue.h"
#include "server/rpc/status.h"
#include "server/tokenizer/utf8.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

class AnswerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = absl::StrCat(::testing::TempDir(), "/answer_test.", getpid(), ".gguf");
    ASSERT_TRUE(WriteSyntheticGguf(SyntheticModel(), path).ok());
    file_ = *OpenGguf(path);
    tokenizer_ = *Tokenizer::FromModel(*file_);
    std::filesystem::remove(path);
  }

  // Feeds every token of `text`; the text that came out and what Finish gave.
  std::string Play(Answer& answer, const std::string& text) {
    const std::vector<int32_t> ids = *tokenizer_->Encode(text, {.parse_special = true, .add_bos = false});
    std::string out;
    for (int32_t id : ids) {
      v1::SampledToken token;
      token.set_id(id);
      v1::Tokens message;
      answer.Feed(token, message);
      out += message.text();
    }
    return out + answer.Finish();
  }

  std::shared_ptr<const ModelFile> file_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(AnswerTest, EndsAtMaxTokensWithAllText) {
  const std::vector<int32_t> ids = *tokenizer_->Encode("Xin chào", {.parse_special = false, .add_bos = false});
  Answer answer(tokenizer_, {}, {}, static_cast<int32_t>(ids.size()));
  EXPECT_EQ(Play(answer, "Xin chào"), "Xin chào");
  EXPECT_EQ(answer.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.tokens(), static_cast<int32_t>(ids.size()));
}

TEST_F(AnswerTest, AlternativesCarryTheirText) {
  Answer answer(tokenizer_, {}, {}, 100);
  v1::SampledToken token;
  const std::string text = "a \xf0\x9f\x98\x80";
  const std::vector<int32_t> ids = *tokenizer_->Encode(text, {.parse_special = true, .add_bos = false});
  for (const int32_t id : ids) token.mutable_logprobs()->add_top()->set_id(id);
  token.mutable_logprobs()->add_top()->set_id(kSyntheticImEnd);
  token.mutable_logprobs()->add_top()->set_id(1 << 20);  // no token
  v1::Tokens message;
  answer.Feed(token, message);
  std::string bytes;
  bool parts = false;
  for (const v1::TokenLogprob& top : message.logprobs(0).top()) {
    const std::string own(tokenizer_->TokenBytes(top.id()));
    EXPECT_EQ(top.text(), ReplaceInvalidUtf8(own));
    EXPECT_EQ(top.bytes(), top.text() == own ? "" : own);
    bytes += top.bytes().empty() ? top.text() : top.bytes();
    parts = parts || !top.bytes().empty();
  }
  EXPECT_TRUE(parts) << "no token was a part of a character";
  EXPECT_EQ(bytes, text + "<|im_end|>");
}

TEST_F(AnswerTest, AStopIdIsCountedButIsNoText) {
  Answer answer(tokenizer_, {}, {kSyntheticImEnd}, 100);
  EXPECT_EQ(Play(answer, "ab<|im_end|>cd"), "ab");
  EXPECT_EQ(answer.reason(), v1::FINISH_REASON_STOP);
  EXPECT_FALSE(answer.stopped_by_text());
  EXPECT_EQ(
      answer.tokens(),
      static_cast<int32_t>(tokenizer_->Encode("ab<|im_end|>", {.parse_special = true, .add_bos = false})->size()));
}

TEST_F(AnswerTest, EndsBeforeTheFirstStopString) {
  Answer answer(tokenizer_, {"\n\n", "END"}, {}, 100);
  EXPECT_EQ(Play(answer, "one\ntwo END three"), "one\ntwo ");
  EXPECT_EQ(answer.reason(), v1::FINISH_REASON_STOP);
  EXPECT_TRUE(answer.stopped_by_text());
}

TEST_F(AnswerTest, AStopStringWithinTheFirstTokensIsText) {
  const std::vector<int32_t> ids = *tokenizer_->Encode("END END", {.add_bos = false});
  const auto before = static_cast<int32_t>(tokenizer_->Encode("END", {.add_bos = false})->size());
  Answer first(tokenizer_, {"END"}, {}, 100, false, before - 1);
  EXPECT_EQ(Play(first, "END END"), "");
  Answer second(tokenizer_, {"END"}, {}, 100, false, before);
  EXPECT_EQ(Play(second, "END END"), "END ");
  EXPECT_EQ(second.reason(), v1::FINISH_REASON_STOP);
  Answer none(tokenizer_, {"END"}, {}, 100, false, static_cast<int32_t>(ids.size()));
  EXPECT_EQ(Play(none, "END END"), "END END");
  EXPECT_FALSE(none.reason());
}

// A control token is no text, so its name could never be found there.
TEST_F(AnswerTest, AStopStringWithTheNameOfAControlTokenMeansTheToken) {
  for (const bool ends_by_id : {false, true}) {
    std::vector<int32_t> ids;
    if (ends_by_id) ids.push_back(kSyntheticImEnd);
    for (const auto& [stop, text] : {std::pair("<|im_end|>", "ab"), std::pair("b<|im_end|>", "a")}) {
      Answer answer(tokenizer_, {stop}, ids, 100);
      EXPECT_EQ(Play(answer, "ab<|im_end|>cd"), text);
      EXPECT_EQ(answer.reason(), v1::FINISH_REASON_STOP);
    }
  }
  Answer across(tokenizer_, {"b<|im_end|>\n"}, {}, 100);
  EXPECT_EQ(Play(across, "ab<|im_end|>\ncd"), "a");
  Answer other(tokenizer_, {"<|im_start|>", "b<|im_end|>\n", "|"}, {}, 100);
  EXPECT_EQ(Play(other, "ab<|im_end|>cd"), "abcd");
  EXPECT_FALSE(other.reason());
}

// Whatever kind a token is of: what it shows of itself, or what it is called where it shows nothing, ends the answer as
// a stop string, and its id as a stop id.
TEST(AnswerStops, EndAtTokensOfEveryKind) {
  Vocabulary vocabulary;
  vocabulary.model = TokenModel::kPieceBpe;
  vocabulary.tokens = {{"<unk>", TokenKind::kControl},      {"</s>", TokenKind::kControl}, {"<0x0A>", TokenKind::kByte},
                       {"<tool>", TokenKind::kUserDefined}, {"x", TokenKind::kNormal},     {"y", TokenKind::kNormal},
                       {"[gone]", TokenKind::kUnused}};
  vocabulary.byte_ids.fill(-1);
  vocabulary.byte_ids['\n'] = 2;
  vocabulary.eos = 1;
  for (int32_t id : {0, 1, 3}) {
    const VocabularyToken& token = vocabulary.tokens[static_cast<size_t>(id)];
    vocabulary.named.push_back({.name = token.text, .id = id, .control = token.kind == TokenKind::kControl});
  }
  const std::shared_ptr<const Tokenizer> tokenizer = *Tokenizer::FromVocabulary(vocabulary);
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    for (const bool by_id : {false, true}) {
      const std::string shown(tokenizer->TokenBytes(id));
      if (!by_id && shown.empty()) continue;  // an id without a token
      Answer answer(tokenizer, by_id ? std::vector<std::string>() : std::vector{shown},
                    by_id ? std::vector{id} : std::vector<int32_t>(), 100);
      v1::Tokens message;
      for (const int32_t fed : {id == 5 ? 4 : 5, id, 4}) {
        v1::SampledToken token;
        token.set_id(fed);
        answer.Feed(token, message);
      }
      EXPECT_EQ(answer.reason(), v1::FINISH_REASON_STOP) << id << shown;
      EXPECT_EQ(message.text() + answer.Finish(), id == 5 ? "x" : "y") << id << shown;
    }
  }
}

TEST_F(AnswerTest, WhatLooksLikeAStopStringAtTheEndComesOutAfterAll) {
  const std::vector<int32_t> ids = *tokenizer_->Encode("the EN", {.parse_special = false, .add_bos = false});
  Answer answer(tokenizer_, {"END"}, {}, static_cast<int32_t>(ids.size()));
  EXPECT_EQ(Play(answer, "the EN"), "the EN");
  EXPECT_EQ(answer.reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(AnswerTest, PutsIndexIdsAndLogprobsIntoTheMessage) {
  Answer answer(tokenizer_, {}, {}, 3);
  for (int i = 0; i < 4; ++i) {
    v1::SampledToken token;
    token.set_id(50 + i);
    token.mutable_logprobs()->add_top()->set_logprob(-1.0f * i);
    v1::Tokens message;
    answer.Feed(token, message);
    if (i == 3) {
      EXPECT_TRUE(message.ids().empty());  // it had ended
      break;
    }
    EXPECT_EQ(message.index(), i);
    ASSERT_EQ(message.ids_size(), 1);
    EXPECT_EQ(message.ids(0), 50 + i);
    EXPECT_EQ(message.logprobs(0).top(0).logprob(), -1.0f * i);
  }
}

v1::GenerateResponse Tokens(int index, std::vector<int32_t> ids, const std::string& text) {
  v1::GenerateResponse response;
  response.mutable_tokens()->set_index(index);
  for (int32_t id : ids) {
    response.mutable_tokens()->add_ids(id);
    response.mutable_tokens()->add_logprobs();
  }
  response.mutable_tokens()->set_text(text);
  return response;
}

TEST(ResponseQueue, PutsTokensTogetherAndDropsNothing) {
  ResponseQueue queue;
  v1::GenerateResponse started;
  started.mutable_started()->set_request_id("r");
  queue.Push(started);
  queue.Push(Tokens(0, {1}, "a"));
  queue.Push(Tokens(1, {2, 3}, "b"));
  v1::GenerateResponse finished;
  finished.mutable_finished();
  queue.Push(finished);
  EXPECT_TRUE(queue.Pop().has_started());
  const v1::GenerateResponse tokens = queue.Pop();
  EXPECT_EQ(tokens.tokens().index(), 0);
  EXPECT_EQ(tokens.tokens().ids_size(), 3);
  EXPECT_EQ(tokens.tokens().logprobs_size(), 3);
  EXPECT_EQ(tokens.tokens().text(), "ab");
  EXPECT_TRUE(queue.Pop().has_finished());
  EXPECT_TRUE(queue.empty());
}

// A client that takes nothing while a long answer with logprobs comes: what waits is cut into messages that it takes.
TEST(ResponseQueue, NoMessageGrowsBeyondWhatClientsTake) {
  ResponseQueue queue;
  constexpr int kTokens = 60'000;
  for (int i = 0; i < kTokens; ++i) {
    v1::GenerateResponse response = Tokens(i, {i}, "ab");
    for (int k = 0; k < 21; ++k) {
      v1::TokenLogprob& top = *response.mutable_tokens()->mutable_logprobs(0)->add_top();
      top.set_id(30'000 + k);
      top.set_logprob(-1.5F);
    }
    queue.Push(std::move(response));
  }
  int next = 0, messages = 0;
  size_t all = 0;
  for (; !queue.empty(); ++messages) {
    const v1::GenerateResponse response = queue.Pop();
    EXPECT_LE(response.ByteSizeLong(), kMaxAnswerBytes);
    all += response.ByteSizeLong();
    EXPECT_EQ(response.tokens().index(), next);
    for (const int32_t id : response.tokens().ids()) ASSERT_EQ(id, next++);
    EXPECT_EQ(response.tokens().logprobs_size(), response.tokens().ids_size());
  }
  EXPECT_EQ(next, kTokens);
  EXPECT_GT(all, 3 * kMaxAnswerBytes) << "it all went into one message";
  EXPECT_LE(messages, 32) << "and few wait";
}

TEST(AnswerLimits, TokensThatMakeTooLargeAnAnswerAreRefusedWithBothSizes) {
  v1::TokenizeResponse response;
  response.mutable_ids()->Resize(1'000'000, 200'000);
  EXPECT_TRUE(CheckAnswerSize(response).ok()) << "a million always fits";
  response.mutable_ids()->Resize(2'000'000, 200'000);
  const absl::Status status = CheckAnswerSize(response);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(BlamedField(status), "text");
  EXPECT_THAT(status.message(), ::testing::HasSubstr("text: its 2000000 tokens make an answer of 60000"));
}

// A chain of 16 whose workers all recorded as much as they keep.
TEST(AnswerLimits, ATraceLosesTheEndsOfItsLongestParts) {
  v1::Trace trace;
  trace.set_request_id("r");
  for (int i = 0; i < 18; ++i) {
    v1::TraceProcess& process = *trace.add_processes();
    process.set_name("prefill");
    process.set_dropped(2);
    for (int k = 0; k < (i == 0 ? 9 : 8192); ++k) {
      v1::TraceSpan& span = *process.add_spans();
      span.set_name("handoff_slice");
      span.set_layer(k % 100);
      span.set_start_ns(1'000'000'000 + k);
      span.set_duration_ns(1'000'000);
      span.set_amount(1 << 20);
    }
  }
  v1::Trace small = trace;
  small.mutable_processes()->DeleteSubrange(2, 16);
  const v1::Trace before = small;
  FitAnswer(small);
  EXPECT_EQ(small.SerializeAsString(), before.SerializeAsString()) << "what fits stays as it is";
  ASSERT_GT(trace.ByteSizeLong(), kMaxAnswerBytes);
  FitAnswer(trace);
  EXPECT_LE(trace.ByteSizeLong(), kMaxAnswerBytes);
  EXPECT_GT(trace.ByteSizeLong(), kMaxAnswerBytes * 9 / 10) << "no more than need be";
  EXPECT_EQ(trace.processes(0).spans_size(), 9);
  EXPECT_EQ(trace.processes(0).dropped(), 2);
  for (int i = 1; i < 18; ++i) {
    EXPECT_EQ(trace.processes(i).spans_size() + trace.processes(i).dropped(), 8192 + 2);
    EXPECT_EQ(trace.processes(i).spans(0).start_ns(), 1'000'000'000) << "the beginning stays";
  }
}

v1::GenerateResponse TokensOf(int32_t answer, int32_t index, const std::string& text) {
  v1::GenerateResponse response = Tokens(index, {index}, text);
  response.mutable_tokens()->set_answer(answer);
  return response;
}

// Tokens of several answers come mixed: each waits in one message, behind what came of it before.
TEST(ResponseQueue, TokensJoinThoseOfTheSameAnswerAlone) {
  ResponseQueue queue;
  for (int32_t index = 0; index < 3; ++index) {
    for (int32_t answer = 0; answer < 2; ++answer) queue.Push(TokensOf(answer, index, answer == 0 ? "a" : "b"));
  }
  v1::GenerateResponse finished;
  finished.mutable_finished()->set_answer(0);
  queue.Push(finished);
  queue.Push(TokensOf(1, 3, "b"));
  const v1::GenerateResponse first = queue.Pop(), second = queue.Pop();
  EXPECT_EQ(first.tokens().answer(), 0);
  EXPECT_EQ(first.tokens().text(), "aaa");
  EXPECT_EQ(second.tokens().answer(), 1);
  EXPECT_EQ(second.tokens().text(), "bbbb");
  EXPECT_EQ(second.tokens().ids_size(), 4);
  EXPECT_TRUE(queue.Pop().has_finished());
  EXPECT_TRUE(queue.empty());
}

TEST(ResponseQueue, NothingJoinsWhatStandsBeforeAnotherMessageOfItsAnswer) {
  ResponseQueue queue;
  queue.Push(TokensOf(1, 0, "a"));
  v1::GenerateResponse finished;
  finished.mutable_finished()->set_answer(1);
  queue.Push(finished);
  queue.Push(TokensOf(1, 1, "b"));
  EXPECT_EQ(queue.Pop().tokens().text(), "a");
  EXPECT_TRUE(queue.Pop().has_finished());
  EXPECT_EQ(queue.Pop().tokens().text(), "b");
}

TEST(ResponseQueue, LeavesAloneWhatWasTaken) {
  ResponseQueue queue;
  queue.Push(Tokens(0, {1}, "a"));
  const v1::GenerateResponse taken = queue.Pop();
  queue.Push(Tokens(1, {2}, "b"));
  EXPECT_EQ(taken.tokens().ids_size(), 1);
  EXPECT_EQ(queue.Pop().tokens().index(), 1);
}

}  // namespace
}  // namespace runahead
