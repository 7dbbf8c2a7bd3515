// Prompts that begin as sequences did that ended here: the engine goes on from what these left.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/decode/engine_fixture.h"
#include "worker/decode/engine.h"

namespace runahead {
namespace {

using testing::CollectingSink;
using testing::DecodeEngineTest;
using testing::ExpectedTokens;
using testing::HashModel;

class EngineKnown : public DecodeEngineTest {
 protected:
  EngineKnown() { MakeEngine(16, /*step_rows=*/16); }

  std::vector<int32_t> Run(const DecodeSequence& sequence) {
    const std::shared_ptr<CollectingSink> sink = Add(sequence);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    return sink->ids();
  }
  // Prompt and answer of a sequence that came and ended: all of them but the last are kept.
  std::vector<int32_t> RunToEnd(int seed, int64_t prompt, int64_t max_tokens) {
    const DecodeSequence sequence = MakeSequence(seed, prompt, max_tokens);
    Fill(sequence);
    std::vector<int32_t> ids = sequence.prompt_ids;
    ids.push_back(sequence.output_ids[0]);
    for (const int32_t id : Run(sequence)) ids.push_back(id);
    return ids;
  }
  DecodeSequence Known(std::vector<int32_t> prompt, int64_t max_tokens, int64_t least = 1, bool grows = false) {
    DecodeSequence sequence;
    const auto tokens = static_cast<int64_t>(prompt.size());
    LeaseRequest request{.prompt_tokens = tokens, .total_tokens = tokens + max_tokens};
    request.least_known_tokens = least;
    request.prompt_ids = prompt;
    if (grows) request.expected_tokens = tokens;
    const absl::StatusOr<LeaseId> lease = store_->Reserve(request);
    EXPECT_TRUE(lease.ok()) << lease.status();
    sequence.lease = lease.value_or(LeaseId{});
    sequence.prompt_ids = std::move(prompt);
    sequence.max_tokens = max_tokens;
    return sequence;
  }
  static LeaseRequest LeastKnown(const std::vector<int32_t>& prompt) {
    const auto tokens = static_cast<int64_t>(prompt.size());
    LeaseRequest request{.prompt_tokens = tokens, .total_tokens = tokens + 1};
    request.least_known_tokens = 1;
    request.prompt_ids = prompt;
    return request;
  }
  int64_t KnownTokens(const DecodeSequence& sequence) { return store_->SizeOf(sequence.lease)->known_tokens; }
  // The tokens that it must give, in as many rows as are not known.
  void ExpectGoesOn(const DecodeSequence& sequence, int64_t known) {
    EXPECT_EQ(KnownTokens(sequence), known);
    model_->prompt_rows = 0;
    EXPECT_EQ(Run(sequence), ExpectedTokens(sequence));
    EXPECT_EQ(model_->prompt_rows, static_cast<int64_t>(sequence.prompt_ids.size()) - known);
  }
};

TEST_F(EngineKnown, AConversationGoesOnFromPromptAndAnswer) {
  std::vector<int32_t> ids = RunToEnd(1, 200, 100);
  for (int turn = 0; turn < 3; ++turn) {
    const auto known = static_cast<int64_t>(ids.size()) - 1;
    for (int32_t i = 0; i < 40; ++i) ids.push_back((7 * i + turn) % 60);
    const DecodeSequence next = Known(ids, 30);
    EXPECT_EQ(KnownTokens(next), known);
    model_->prompt_rows = 0;
    const std::vector<int32_t> answer = Run(next);
    EXPECT_EQ(answer, ExpectedTokens(next));
    EXPECT_EQ(model_->prompt_rows, 41);
    ids.insert(ids.end(), answer.begin(), answer.end());
  }
  ExpectNothingHeld();
}

TEST_F(EngineKnown, AnAnswerThatIsDrawnAgainComputesOneRow) {
  const std::vector<int32_t> ids = RunToEnd(2, 300, 20);
  ExpectGoesOn(Known({ids.begin(), ids.begin() + 300}, 25), 299);
}

TEST_F(EngineKnown, AnEditLeavesWhatIsBeforeIt) {
  const std::vector<int32_t> ids = RunToEnd(3, 600, 20);
  for (const int64_t at : {1, 255, 256, 257, 511, 512, 513, 590, 605}) {
    std::vector<int32_t> edited = ids;
    edited[at] = (edited[at] + 1) % 60;
    DecodeSequence sequence = Known(edited, 10);
    EXPECT_GE(KnownTokens(sequence), at);  // what was edited before may begin alike, too
    EXPECT_EQ(Run(sequence), ExpectedTokens(sequence)) << at;
  }
  ExpectNothingHeld();
}

TEST_F(EngineKnown, WhoIsCancelledLeavesWhatIsComputed) {
  const DecodeSequence sequence = MakeSequence(4, 300, 200);
  Fill(sequence);
  door_.Shut();
  const std::shared_ptr<CollectingSink> sink = Add(sequence);
  door_.LetPass(20);
  sink->AwaitTokens(20);
  engine_->Cancel(last_added_);
  door_.Open();
  EXPECT_TRUE(absl::IsCancelled(sink->AwaitEnd()));
  std::vector<int32_t> ids = sequence.prompt_ids;
  ids.push_back(sequence.output_ids[0]);
  for (const int32_t id : sink->ids()) ids.push_back(id);
  const auto known = static_cast<int64_t>(ids.size()) - 1;
  EXPECT_GE(known, 320);
  ids.push_back(3);
  ExpectGoesOn(Known(ids, 20), known);
}

// Answers to one prompt: the others begin while the first one is decoded.
TEST_F(EngineKnown, APromptIsKnownFromItsFirstTokenDrawnHereOn) {
  const DecodeSequence sequence = MakeSequence(11, 300, 200);
  Fill(sequence);
  door_.Shut();
  const std::shared_ptr<CollectingSink> first = Add(sequence);
  EXPECT_TRUE(absl::IsNotFound(store_->Reserve(LeastKnown(sequence.prompt_ids)).status()));
  door_.LetPass(1);
  first->AwaitTokens(1);
  std::vector<DecodeSequence> others;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    others.push_back(Known(sequence.prompt_ids, 40 + i, /*least=*/299));
    EXPECT_EQ(KnownTokens(others.back()), 299);
    sinks.push_back(Add(others.back()));
  }
  door_.Open();
  EXPECT_EQ(first->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(first->ids(), ExpectedTokens(sequence));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(others[i])) << i;
  }
  EXPECT_EQ(model_->prompt_rows, 3) << "the last one of the prompt, of each";
  ExpectNothingHeld();
}

// Its answer is one token, which a chain has drawn: it has nothing to decode, and waits for the KV of its prompt.
TEST_F(EngineKnown, WhoseOutputIsAtItsEndLeavesItsPromptWithoutAStep) {
  for (const bool stopped : {false, true}) {
    SCOPED_TRACE(stopped);
    DecodeSequence sequence = MakeSequence(stopped ? 17 : 18, 300, stopped ? 50 : 1);
    if (stopped) sequence.stop_ids = sequence.output_ids;
    const int passes = passes_;
    const std::shared_ptr<CollectingSink> sink = Add(sequence);
    EXPECT_TRUE(absl::IsNotFound(store_->Reserve(LeastKnown(sequence.prompt_ids)).status())) << "KV is on its way";
    Fill(sequence);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sink->ids(), std::vector<int32_t>());
    EXPECT_EQ(passes_, passes);
    ExpectNothingHeld();
    ExpectGoesOn(Known(sequence.prompt_ids, 20), 299);
  }
}

// Also where it began behind what was known: of a begun block it has a copy then.
TEST_F(EngineKnown, WithoutRowsOfPromptsWhoseOutputIsAtItsEndLeavesItsPromptToChains) {
  MakeEngine(16);
  DecodeSequence sequence = MakeSequence(19, 300, 1);
  LeaseRequest behind = LeastKnown(sequence.prompt_ids);
  behind.least_known_tokens = 299;
  behind.rest_handed = true;
  for (int turn = 0; turn < 2; ++turn) {
    const std::shared_ptr<CollectingSink> sink = Add(sequence);
    if (turn == 0) {
      EXPECT_TRUE(absl::IsNotFound(store_->Reserve(behind).status())) << "KV is on its way";
    }
    Fill(sequence);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sink->ids(), std::vector<int32_t>());
    const absl::StatusOr<LeaseId> lease = store_->Reserve(behind);
    ASSERT_TRUE(lease.ok()) << lease.status();
    sequence.lease = *lease;
  }
  EXPECT_EQ(passes_, 0);
  store_->Release(sequence.lease);
  ExpectNothingHeld();
}

// The step wrote no row of the prompt, which steps before it have read.
TEST_F(EngineKnown, WhoseStepFailsLeavesItsPromptAlone) {
  bad_ = {310};
  const DecodeSequence sequence = MakeSequence(5, 300, 200);
  Fill(sequence);
  const std::shared_ptr<CollectingSink> sink = Add(sequence);
  EXPECT_FALSE(sink->AwaitEnd().ok());
  bad_ = {};
  std::vector<int32_t> ids = sequence.prompt_ids;
  ids.push_back(sequence.output_ids[0]);
  for (const int32_t id : sink->ids()) ids.push_back(id);
  ids.push_back(3);
  ExpectGoesOn(Known(ids, 20), 300);
}

TEST_F(EngineKnown, WhoseFirstStepFailsLeavesNothing) {
  bad_ = {300};
  const DecodeSequence sequence = MakeSequence(5, 300, 200);
  Fill(sequence);
  EXPECT_FALSE(Add(sequence)->AwaitEnd().ok());
  EXPECT_EQ(store_->stats().kept_bytes, 0);
}

// Who computes no rows of prompts leaves what ends to chains.
TEST_F(EngineKnown, AChainsRestIsDecodedBehindWhatIsKnown) {
  for (const int64_t step_rows : {0, 16}) {
    MakeStore(64);
    MakeEngine(16, step_rows);
    EXPECT_EQ(engine_->CheckKnown().ok(), step_rows > 0);
    EXPECT_EQ(engine_->CheckLends(), absl::OkStatus());
    std::vector<int32_t> ids = RunToEnd(6, 300, 300);
    for (int32_t i = 0; i < 90; ++i) ids.push_back((11 * i) % 60);
    const auto tokens = static_cast<int64_t>(ids.size());
    LeaseRequest request{.prompt_tokens = tokens, .total_tokens = tokens + 40};
    request.least_known_tokens = 2 * kKvBlockTokens;
    request.rest_handed = true;
    request.prompt_ids = ids;
    const absl::StatusOr<LeaseId> lease = store_->Reserve(request);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(store_->SizeOf(*lease)->known_answer_tokens, 2 * kKvBlockTokens - 300);
    DecodeSequence sequence;
    sequence.lease = *lease;
    sequence.prompt_ids = ids;
    sequence.output_ids = {7};  // the tail's
    sequence.max_tokens = 40;
    model_->prompt_rows = 0;
    Fill(sequence);
    EXPECT_EQ(Run(sequence), ExpectedTokens(sequence));
    EXPECT_EQ(model_->prompt_rows, 0);
    ExpectNothingHeld();
  }
}

// Four begin with the same before the first of them has run.
TEST_F(EngineKnown, SeveralBeginAlikeAtOnce) {
  std::vector<int32_t> ids = RunToEnd(7, 290, 30);
  std::vector<DecodeSequence> sequences;
  door_.Shut();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = ids;
    prompt.resize(prompt.size() + 5 + i, i);
    sequences.push_back(Known(prompt, 40));
    sinks.push_back(Add(sequences.back()));
  }
  door_.Open();
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sinks[i]->ids(), ExpectedTokens(sequences[i])) << i;
  }
  ExpectNothingHeld();
}

// Each takes most of the store, so what others left goes while they run.
TEST_F(EngineKnown, WhatIsLeftGoesWhereMemoryIsNeeded) {
  MakeStore(6);
  MakeEngine(16, 16);
  std::vector<int32_t> first = RunToEnd(8, 300, 100);
  for (int seed = 9; seed < 14; ++seed) RunToEnd(seed, 700, 200);
  EXPECT_GT(store_->stats().evicted_bytes, 0);
  first.push_back(1);
  LeaseRequest request{.prompt_tokens = static_cast<int64_t>(first.size()), .total_tokens = 500};
  request.least_known_tokens = 20;  // fewer may begin alike by chance
  request.prompt_ids = first;
  EXPECT_TRUE(absl::IsNotFound(store_->Reserve(request).status()));
}

TEST_F(EngineKnown, OneThatIsParkedComesBackAndComputesAllOfIt) {
  MakeStore(7);
  MakeEngine(16, 16);
  std::vector<int32_t> ids = RunToEnd(15, 200, 200);
  ids.resize(ids.size() + 10, 5);
  DecodeSequence grows = Known(ids, 500, 1, /*grows=*/true);
  EXPECT_EQ(KnownTokens(grows), 399);
  LeaseRequest request{.prompt_tokens = 300, .total_tokens = 1000};
  request.expected_tokens = 300;
  const DecodeSequence other = testing::MakeHashSequence(*store_, 16, request);
  Fill(other);
  door_.Shut();
  const auto sink_of_other = Add(other), sink = Add(grows);
  door_.Open();
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink_of_other->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), ExpectedTokens(grows));
  EXPECT_EQ(sink_of_other->ids(), ExpectedTokens(other));
  EXPECT_GE(parkings_, 1);
  ExpectNothingHeld();
  EXPECT_EQ(store_->stats().promised_bytes, 0);
}

}  // namespace
}  // namespace runahead
