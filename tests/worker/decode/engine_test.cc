#include "worker/decode/engine.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/decode/engine_fixture.h"

namespace runahead {
namespace {

using testing::CollectingSink;
using testing::DecodeEngineTest;
using testing::ExpectedTokens;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(DecodeEngineTest, EmitsTheTokensAfterTheFirstOne) {
  const DecodeSequence sequence = MakeSequence(1, 300, 20);
  Fill(sequence);
  const auto sink = Add(sequence);
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), ExpectedTokens(sequence));
  EXPECT_EQ(sink->ids().size(), 19u);
  EXPECT_EQ(device_.steps(), 19) << "each step is one piece for the device";
  ExpectNothingHeld();
}

// A draw is the device's work: logits stay where they are, whatever the options.
TEST_F(DecodeEngineTest, NoLogitsComeToTheHost) {
  std::vector<DecodeSequence> sequences;
  for (int i = 0; i < 4; ++i) {
    sequences.push_back(MakeSequence(700 + i, 10, 41));
    SamplingOptions& sampling = sequences.back().sampling;
    if (i > 0) sampling.temperature = 0.8f;
    if (i == 2) sampling.repetition_penalty = 1.3f, sampling.presence_penalty = 0.2f;
    if (i == 3) sampling.logprobs = 3;
  }
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const DecodeSequence& sequence : sequences) {
    Fill(sequence);
    sinks.push_back(Add(sequence));
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i]));
  }
  engine_ = nullptr;
  // Of a token: id, logit, sum and four likeliest. Of the sequence with penalties: what it has, once, the other way.
  const int64_t once = testing::HashModel::kVocab * sizeof(int32_t);
  EXPECT_LE(device_.copied_bytes(), static_cast<int64_t>(4 * 40 * (3 + 2 * 4) * sizeof(float)) + once);
}

TEST_F(DecodeEngineTest, WaitsForKvWithoutHoldingUpOthers) {
  const DecodeSequence late = MakeSequence(2, 40, 5), ready = MakeSequence(3, 30, 5);
  const auto late_sink = Add(late);
  testing::FillHashKv(*store_, late, 0);
  Fill(ready);
  EXPECT_EQ(Add(ready)->AwaitEnd(), absl::OkStatus());
  EXPECT_THAT(late_sink->ids(), IsEmpty());
  Fill(late);
  EXPECT_EQ(late_sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(late_sink->ids(), ExpectedTokens(late));
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, SixteenTogetherGiveWhatEachGivesAlone) {
  std::vector<DecodeSequence> sequences;
  for (int i = 0; i < 16; ++i) {
    sequences.push_back(MakeSequence(100 + i, 1 + 53 * i, 4 + 7 * (i % 5)));
    SamplingOptions& sampling = sequences.back().sampling;
    if (i % 3 == 1) sampling.temperature = 0.7f, sampling.top_p = 0.9f, sampling.seed = i;
    if (i % 3 == 2) sampling.repetition_penalty = 1.2f, sampling.frequency_penalty = 0.3f;
    if (i % 4 == 3) sampling.logprobs = 2;
  }
  const auto run = [&](const DecodeSequence& sequence) {
    Fill(sequence);
    return Add(sequence);
  };
  // The first step is held until all are there, so that they really run together.
  door_.Shut();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const DecodeSequence& sequence : sequences) sinks.push_back(run(sequence));
  door_.Open();
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i])) << i;
    for (const Sampled& token : sinks[i]->tokens()) {
      ASSERT_EQ(token.logprobs.size(), i % 4 == 3 ? 3u : 0u);
      EXPECT_TRUE(token.logprobs.empty() || token.logprobs[0].id == token.id);
    }
  }
  EXPECT_GE(largest_step_, 15);
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, AStepIsNeverLargerThanMaxBatchAndTheRestWaits) {
  MakeEngine(3);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<DecodeSequence> sequences;
  for (int i = 0; i < 10; ++i) {
    sequences.push_back(MakeSequence(i, 20, 6));
    Fill(sequences.back());
    sinks.push_back(Add(sequences.back()));
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i]));
  }
  EXPECT_EQ(largest_step_, 3);
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, AStopIdIsTheLastToken) {
  DecodeSequence sequence = MakeSequence(4, 10, 30);
  const std::vector<int32_t> all = ExpectedTokens(sequence);
  sequence.stop_ids = {59, all[5]};
  const std::vector<int32_t> expected = ExpectedTokens(sequence);
  ASSERT_LT(expected.size(), all.size());
  Fill(sequence);
  const auto sink = Add(sequence);
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), expected);
  EXPECT_EQ(sink->ids().back(), all[5]);
}

// Some that would end soon, with bad words, biases and penalties, beside one without.
TEST_F(DecodeEngineTest, BiasesAndRulesHoldForEverySequenceOfAStep) {
  std::vector<DecodeSequence> sequences;
  for (int i = 0; i < 6; ++i) {
    DecodeSequence sequence = MakeSequence(900 + i, 20 + i, 60);
    const std::vector<int32_t> free = ExpectedTokens(sequence);
    if (i % 2 == 1) sequence.rules = {.min_tokens = 30, .end_ids = {free[3], free[9]}, .bad_ids = {}};
    if (i % 2 == 1) sequence.stop_ids = sequence.rules.end_ids;
    // The second word begins with the first token, which is there already.
    if (i % 3 == 1) sequence.rules.bad_ids = {{free[4], free[5]}, {sequence.output_ids[0], free[0]}, {free[8]}};
    if (i == 2 || i == 4) sequence.sampling.logit_bias = {{free[1], -100}, {7, 2.5f}, {8, 2.5f}};
    if (i == 4) sequence.sampling.repetition_penalty = 1.3f;
    if (i == 5) sequence.sampling.temperature = 0.8f, sequence.sampling.seed = 4;
    sequences.push_back(sequence);
    if (i > 0 && i != 5) {
      EXPECT_NE(ExpectedTokens(sequence), free) << i;
    }
  }
  door_.Shut();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const DecodeSequence& sequence : sequences) {
    Fill(sequence);
    sinks.push_back(Add(sequence));
  }
  door_.Open();
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i])) << i;
    EXPECT_GE(sinks[i]->ids().size(), i % 2 == 1 ? 29u : 1u) << i;
  }
  ExpectNothingHeld();
}

// Where an answer goes on elsewhere, rules look at the output that is there.
TEST_F(DecodeEngineTest, RulesSeeTheOutputThatIsThere) {
  DecodeSequence whole = MakeSequence(950, 20, 40);
  const std::vector<int32_t> free = ExpectedTokens(whole);
  whole.rules = {.min_tokens = 25, .end_ids = {free[6]}, .bad_ids = {{free[3], free[4]}, {free[9], free[10]}}};
  whole.stop_ids = whole.rules.end_ids;
  const std::vector<int32_t> all = ExpectedTokens(whole);
  for (const size_t known : {1, 4, 10, 20}) {
    DecodeSequence cut = MakeSequence(950, 20, 40);
    cut.rules = whole.rules, cut.stop_ids = whole.stop_ids;
    cut.output_ids.insert(cut.output_ids.end(), all.begin(), all.begin() + static_cast<int64_t>(known));
    Fill(cut);
    const auto sink = Add(cut);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sink->ids(), std::vector<int32_t>(all.begin() + static_cast<int64_t>(known), all.end())) << known;
  }
  store_->Release(whole.lease);
}

// Beside others, with and without bad ids; from output that is there, too.
TEST_F(DecodeEngineTest, AnswersKeepTheirForm) {
  if (!StructuredOutputStatus().ok()) GTEST_SKIP() << "did not run here: " << StructuredOutputStatus().message();
  grammars_ = std::make_shared<GrammarSource>([] { return testing::MakeLetterTokenizer(); }, HashModel::kVocab);
  MakeEngine(16);
  std::vector<DecodeSequence> sequences;
  for (int i = 0; i < 6; ++i) {
    DecodeSequence sequence = MakeSequence(980 + i, 20 + i, 30);
    sequence.stop_ids = {testing::kLettersEnd};
    if (i % 3 != 2) {
      sequence.rules.structure = {.kind = StructureKind::kChoice, .choices = {"abc", "abdefg", "axyz", "awwwwwww"}};
      sequence.output_ids = {0};
      if (i == 1) sequence.output_ids = {0, 'w' - 'a', 'w' - 'a'};
      if (i == 4) sequence.rules.bad_ids = {{0, 1}};
    }
    if (i >= 3) sequence.sampling.temperature = 5, sequence.sampling.seed = static_cast<uint64_t>(i);
    sequences.push_back(sequence);
  }
  door_.Shut();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const DecodeSequence& sequence : sequences) {
    Fill(sequence);
    sinks.push_back(Add(sequence));
  }
  door_.Open();
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i])) << i;
    if (sequences[i].rules.structure.has_value()) {
      EXPECT_EQ(sinks[i]->ids().back(), testing::kLettersEnd) << i;
    }
  }
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, OutputThatDoesNotHaveTheFormEndsTheSequence) {
  if (!StructuredOutputStatus().ok()) GTEST_SKIP() << "did not run here: " << StructuredOutputStatus().message();
  DecodeSequence other = MakeSequence(990, 20, 30);
  other.rules.structure = {.kind = StructureKind::kChoice, .choices = {"abc"}};
  other.output_ids = {1};
  const absl::Status none = engine_->Add(other, std::make_shared<CollectingSink>()).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented) << "nobody compiles forms: " << none;
  grammars_ = std::make_shared<GrammarSource>([] { return testing::MakeLetterTokenizer(); }, HashModel::kVocab);
  MakeEngine(16);
  DecodeSequence again = MakeSequence(991, 20, 30), wrong = MakeSequence(992, 20, 30);
  again.rules.structure = other.rules.structure, again.output_ids = other.output_ids;
  wrong.rules.structure = {.kind = StructureKind::kRegex, .text = "(a"};
  Fill(again), Fill(wrong);
  const auto sink = Add(again), refused = Add(wrong);
  EXPECT_EQ(sink->AwaitEnd().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(refused->AwaitEnd().message()), HasSubstr("structure.regex"));
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, RulesThatLeaveNoTokenEndTheSequenceAndSayWhy) {
  DecodeSequence none = MakeSequence(960, 20, 40);
  for (int32_t id = 0; id < testing::HashModel::kVocab; ++id) none.rules.end_ids.push_back(id);
  none.rules.min_tokens = 3;
  const DecodeSequence beside = MakeSequence(961, 20, 40);
  Fill(none), Fill(beside);
  const auto sink = Add(none), other = Add(beside);
  const absl::Status status = sink->AwaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no token may follow"));
  EXPECT_EQ(other->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(other->ids(), ExpectedTokens(beside));
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, RefusesRulesThatMakeNoSense) {
  DecodeSequence sequence = MakeSequence(970, 20, 40);
  sequence.rules.bad_ids = {{1}, {}};
  const absl::Status status = engine_->Add(sequence, std::make_shared<CollectingSink>()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rules.bad_ids[1]"));
  DecodeSequence biased = MakeSequence(971, 20, 40);
  biased.sampling.logit_bias = {{testing::HashModel::kVocab, 1}};
  EXPECT_THAT(std::string(engine_->Add(biased, std::make_shared<CollectingSink>()).status().message()),
              HasSubstr("sampling.logit_bias: is 61"));
  ExpectNothingHeld();
}

// Its prompt is left to others first (EngineKnown).
TEST_F(DecodeEngineTest, EndsOnceItsKvIsThereWhenTheFirstTokenWasTheLast) {
  const DecodeSequence one = MakeSequence(5, 10, 1);
  DecodeSequence stopped = MakeSequence(6, 10, 9);
  stopped.stop_ids = stopped.output_ids;
  for (const DecodeSequence& sequence : {one, stopped}) {
    const auto sink = Add(sequence);
    Fill(sequence);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    EXPECT_THAT(sink->ids(), IsEmpty());
  }
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, CancelEndsASequenceWhileItRunsOrWaits) {
  const DecodeSequence running = MakeSequence(7, 10, 1500), waiting = MakeSequence(8, 10, 20);
  Fill(running);
  const auto waiting_sink = Add(waiting);
  engine_->Cancel(last_added_);
  EXPECT_EQ(waiting_sink->AwaitEnd().code(), absl::StatusCode::kCancelled);
  door_.LetPass(3);
  const auto sink = Add(running);
  door_.AwaitComing(4);
  EXPECT_TRUE(engine_->CancelLease(running.lease));
  door_.Open();
  EXPECT_EQ(sink->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(engine_->CancelLease(running.lease)) << "it has ended";
  engine_->Cancel(last_added_);
  engine_->Cancel(12345);
  const std::vector<int32_t> ids = sink->ids(), expected = ExpectedTokens(running);
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.begin()));
  EXPECT_EQ(ids.size(), 4u) << "the step under way, and no other";
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, ALeaseDoesNotExpireWhileItsCallWaitsOrRuns) {
  MakeEngine(1);
  const DecodeSequence running = MakeSequence(14, 10, 100), queued = MakeSequence(15, 10, 5),
                       incomplete = MakeSequence(16, 10, 5);
  Fill(running);
  Fill(queued);
  door_.Shut();
  const auto running_sink = Add(running);
  door_.AwaitComing(1);
  const auto incomplete_sink = Add(incomplete), queued_sink = Add(queued);
  door_.LetPass(1);
  door_.AwaitComing(2);  // the loop has read of the two, and the queued one is open
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(store_->ReapExpired(), 0);
  Fill(incomplete);
  door_.Open();
  EXPECT_EQ(incomplete_sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(incomplete_sink->ids(), ExpectedTokens(incomplete));
  EXPECT_EQ(running_sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(queued_sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(queued_sink->ids(), ExpectedTokens(queued));
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, RefusesWhatCannotBeAndGivesTheLeaseBack) {
  const auto refused = [&](const std::function<void(DecodeSequence&)>& spoil, absl::StatusCode code) {
    DecodeSequence sequence = MakeSequence(17, 10, 5);
    spoil(sequence);
    const absl::StatusOr<SequenceNumber> number = engine_->Add(sequence, std::make_shared<CollectingSink>());
    EXPECT_EQ(number.status().code(), code);
    ExpectNothingHeld();
    return number.status().ToString();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refused([](DecodeSequence& s) { s.prompt_ids[3] = 61; }, invalid), HasSubstr("prompt_ids[3]"));
  EXPECT_THAT(refused([](DecodeSequence& s) { s.output_ids = {-1}; }, invalid), HasSubstr("first_token"));
  EXPECT_THAT(refused([](DecodeSequence& s) { s.prompt_ids.clear(); }, invalid), HasSubstr("prompt_ids"));
  EXPECT_THAT(refused([](DecodeSequence& s) { s.max_tokens = 0; }, invalid), HasSubstr("max_tokens"));
  EXPECT_THAT(refused([](DecodeSequence& s) { s.max_tokens = 1991; }, absl::StatusCode::kOutOfRange),
              HasSubstr("context is 2000"));
  EXPECT_THAT(refused([](DecodeSequence& s) { s.sampling.top_p = std::nanf(""); }, invalid),
              HasSubstr("sampling.top_p"));
  EXPECT_THAT(refused([](DecodeSequence& s) { s.sampling.temperature = -1; }, invalid), HasSubstr("temperature"));
  EXPECT_THAT(refused([](DecodeSequence& s) { s.sampling.logprobs = 21; }, invalid), HasSubstr("logprobs"));
}

TEST_F(DecodeEngineTest, RefusesWhatTheLeaseWasNotReservedFor) {
  DecodeSequence longer = MakeSequence(18, 10, 5), other = MakeSequence(19, 10, 5), unknown = MakeSequence(20, 10, 5);
  longer.max_tokens = 6;
  other.prompt_ids.pop_back();
  for (const DecodeSequence& sequence : {longer, other}) {
    // At once: their KV never comes.
    const absl::Status status = engine_->Add(sequence, std::make_shared<CollectingSink>()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.ToString(), HasSubstr("the lease was reserved for"));
    EXPECT_EQ(store_->SizeOf(sequence.lease).status().code(), absl::StatusCode::kNotFound) << "given back";
  }
  store_->Release(unknown.lease);
  EXPECT_EQ(Add(unknown)->AwaitEnd().code(), absl::StatusCode::kNotFound);
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, ALeaseIsDecodedOnce) {
  const DecodeSequence sequence = MakeSequence(21, 10, 5);
  const auto sink = Add(sequence);
  EXPECT_EQ(engine_->Add(sequence, std::make_shared<CollectingSink>()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Fill(sequence);
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), ExpectedTokens(sequence));
}

TEST_F(DecodeEngineTest, DestructionEndsWhatIsLeft) {
  const DecodeSequence running = MakeSequence(22, 10, 1500), waiting = MakeSequence(23, 10, 5);
  Fill(running);
  const auto running_sink = Add(running), waiting_sink = Add(waiting);
  running_sink->AwaitTokens(2);
  engine_ = nullptr;
  EXPECT_EQ(running_sink->AwaitEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting_sink->AwaitEnd().code(), absl::StatusCode::kUnavailable);
  ExpectNothingHeld();
}

TEST_F(DecodeEngineTest, RefusesAStoreThatDoesNotFitTheModel) {
  absl::StatusOr<std::unique_ptr<KvStore>> other = KvStore::Create({2, 16, 512, 5}, device_, clock_);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(DecodeEngine::Create(device_, model_, **other, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeEngine::Create(device_, model_, *store_, {0, {}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Several clients add, cancel, abandon and fill at random; whoever ends well has its own tokens.
TEST_F(DecodeEngineTest, RandomJoinsAndLeavesMixNothingUp) {
  MakeEngine(5);
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([this, client] {
      std::mt19937 random(client);
      for (int round = 0; round < 25; ++round) {
        DecodeSequence sequence = MakeSequence(1000 * client + round, 1 + random() % 600, 1 + random() % 25);
        if (random() % 2) sequence.sampling.temperature = 1, sequence.sampling.seed = random();
        const int fate = random() % 6;
        if (fate % 2) Fill(sequence);
        auto sink = std::make_shared<CollectingSink>();
        const absl::StatusOr<SequenceNumber> number = engine_->Add(sequence, sink);
        ASSERT_TRUE(number.ok());
        if (fate == 0) store_->Release(sequence.lease);
        if (fate == 1) sink->AwaitTokens(random() % 5);
        if (fate == 1 || fate == 2) engine_->Cancel(*number);
        if (fate % 2 == 0) Fill(sequence);
        const absl::Status end = sink->AwaitEnd();
        const std::vector<int32_t> ids = sink->ids(), expected = ExpectedTokens(sequence);
        ASSERT_LE(ids.size(), expected.size());
        EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.begin()));
        EXPECT_TRUE(!end.ok() || ids.size() == expected.size());
        EXPECT_TRUE(fate <= 2 || end.ok()) << end;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_LE(largest_step_, 5);
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
