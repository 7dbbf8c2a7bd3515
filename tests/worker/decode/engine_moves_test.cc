// Sequences that leave an engine for another one while they are decoded: what both give together, and what comes of
// those that cannot.
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/await_change.h"
#include "tests/testing/await_reading.h"
#include "tests/worker/decode/engine_fixture.h"
#include "worker/decode/engine.h"

namespace runahead {
namespace {

using testing::CollectingSink;
using testing::DecodeEngineTest;
using testing::ExpectedTokens;
using ::testing::HasSubstr;

// Copies rows into a lease of `store`, when the test says so.
class CopyingCarrier final : public SequenceCarrier {
 public:
  CopyingCarrier(KvStore& store, LeaseId lease) : store_(store), lease_(lease) {}

  void Send(KvStore::Lent rows, Done done) override {
    MutexLock lock(mu_);
    sends_.emplace_back(std::move(rows), std::move(done));
    ++sent_;
    changed_.NotifyAll();
  }
  void Cancel() override {
    MutexLock lock(mu_);
    cancelled_ = true;
  }

  // The oldest Send that waits: rows [begin, end) of it.
  std::pair<int64_t, int64_t> AwaitSend() {
    if (!AwaitAny()) return {};
    MutexLock lock(mu_);
    return {sends_.front().first.begin(), sends_.front().first.end()};
  }
  void Deliver() {
    if (!AwaitAny()) return;
    auto [rows, done] = Take();
    int64_t bytes = 0;
    for (int64_t layer = 0; layer < testing::HashModel::kLayers; ++layer) {
      auto write = store_.BeginWrite(lease_, layer, rows.begin(), rows.end());
      RUNAHEAD_CHECK(write.ok());
      std::string copied;
      for (const KvSpan& span : rows.Spans(layer, rows.begin())) {
        copied.append(reinterpret_cast<const char*>(span.rows.data()), span.rows.size);
      }
      size_t at = 0;
      for (const BufferRef& to : write->destination()) {
        std::memcpy(to.data(), copied.data() + at, to.size);
        at += to.size;
      }
      EXPECT_EQ(write->Commit().Wait(), absl::OkStatus());
      bytes += static_cast<int64_t>(at);
    }
    { const KvStore::Lent ended = std::move(rows); }
    done(bytes);
  }
  void Fail(const absl::Status& why) {
    if (!AwaitAny()) return;
    auto [rows, done] = Take();
    { const KvStore::Lent ended = std::move(rows); }
    done(why);
  }
  int sent() {
    MutexLock lock(mu_);
    return sent_;
  }
  bool cancelled() {
    MutexLock lock(mu_);
    return cancelled_;
  }

 private:
  bool AwaitAny() {
    MutexLock lock(mu_);
    testing::ChangeWait wait("the engine sends");
    while (sends_.empty()) {
      if (!wait.Next(mu_, changed_)) return false;
    }
    return true;
  }
  std::pair<KvStore::Lent, Done> Take() {
    MutexLock lock(mu_);
    auto taken = std::move(sends_.front());
    sends_.erase(sends_.begin());
    return taken;
  }

  KvStore& store_;
  const LeaseId lease_;
  Mutex mu_;
  CondVar changed_;
  std::vector<std::pair<KvStore::Lent, Done>> sends_ RUNAHEAD_GUARDED_BY(mu_);
  int sent_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool cancelled_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

class EngineMoves : public DecodeEngineTest {
 protected:
  static constexpr int64_t kPrompt = 300, kTokens = 500;

  EngineMoves() {
    MakeEngine(16, 64);
    there_ = *KvStore::Create({testing::HashModel::kLayers, 16, 16 * kKvBlockTokens, 6}, device_, clock_);
    DecodeEngineOptions options;
    options.step_rows = 64;
    takes_ = *DecodeEngine::Create(device_, model_, *there_, std::move(options), clock_);
  }
  ~EngineMoves() override { takes_ = nullptr; }

  // Greedy, or with all that looks at tokens of before.
  DecodeSequence Make(bool draws = false) {
    DecodeSequence sequence = MakeSequence(3, kPrompt, kTokens);
    if (draws) {
      sequence.sampling.temperature = 0.8f, sequence.sampling.seed = 5;
      sequence.sampling.repetition_penalty = 1.2f, sequence.sampling.frequency_penalty = 0.3f;
    }
    Fill(sequence);
    return sequence;
  }
  LeaseId ReserveThere(int64_t most) {
    return *there_->Reserve({.prompt_tokens = kPrompt,
                             .total_tokens = kPrompt + kTokens,
                             .arriving_tokens = most,
                             .expected_tokens = kPrompt + kTokens});
  }
  // Begins to move it when it has given `tokens` tokens and is in its next step: when that has ended it is asked, and
  // its steps wait at the door.
  std::shared_ptr<CopyingCarrier> Move(const DecodeSequence& sequence, int tokens, int64_t most = kPrompt + kTokens) {
    lease_ = ReserveThere(most);
    const auto carrier = std::make_shared<CopyingCarrier>(*there_, lease_);
    Steps(tokens);
    EXPECT_TRUE(engine_->Move(sequence.lease, carrier, most));
    Steps(1);
    return carrier;
  }
  // Of an engine that is at the door, and comes to it again.
  void Steps(int count) {
    const int came = door_.came();
    door_.LetPass(count);
    door_.AwaitComing(came + count);
  }
  std::shared_ptr<CollectingSink> AddAtTheDoor(const DecodeSequence& sequence) {
    door_.Shut();
    const int came = door_.came();
    const auto sink = Add(sequence);
    door_.AwaitComing(came + 1);
    return sink;
  }
  // The step under way ends. What is sent in the next round is so little that nothing steps meanwhile.
  static void DeliverAndStandStill(testing::Door& door, CopyingCarrier& carrier) {
    carrier.Deliver();
    door.LetPass(1);
    carrier.AwaitSend();
  }
  // The other engine goes on behind the ids that the first one gave.
  std::vector<int32_t> GoOn(const DecodeSequence& sequence, CollectingSink& gave, const MoveOutcome& outcome) {
    DecodeSequence rest = sequence;
    rest.lease = lease_;
    for (const int32_t id : gave.ids()) rest.output_ids.push_back(id);
    rest.moved_tokens = outcome.tokens;
    auto sink = std::make_shared<CollectingSink>();
    const auto added = takes_->Add(rest, sink);
    EXPECT_TRUE(added.ok()) << added.status();
    if (!added.ok()) return {};
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    std::vector<int32_t> ids = gave.ids();
    for (const int32_t id : sink->ids()) ids.push_back(id);
    return ids;
  }

  std::unique_ptr<KvStore> there_;
  std::unique_ptr<DecodeEngine> takes_;
  LeaseId lease_;
};

TEST_F(EngineMoves, WhatOneGivesAndThenTheOtherIsTheStreamOfARunWithout) {
  for (const bool draws : {false, true}) {
    const DecodeSequence sequence = Make(draws);
    const auto sink = AddAtTheDoor(sequence);
    const auto carrier = Move(sequence, 10);
    EXPECT_EQ(carrier->AwaitSend(), std::pair(int64_t{0}, kPrompt + 11));
    Steps(40);  // while that is on its way
    carrier->Deliver();
    Steps(1);
    EXPECT_EQ(carrier->AwaitSend(), std::pair(kPrompt + 11, kPrompt + 52)) << "what was made meanwhile";
    DeliverAndStandStill(door_, *carrier);
    EXPECT_EQ(carrier->AwaitSend(), std::pair(kPrompt + 52, kPrompt + 53)) << "little is left: it stands still";
    door_.Open();
    carrier->Deliver();
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    const MoveOutcome outcome = sink->AwaitMove();
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(sink->ids().size(), 53u);
    EXPECT_EQ(outcome.tokens, kPrompt + 53) << "all but the last one's";
    EXPECT_EQ(outcome.bytes, outcome.tokens * testing::HashModel::kLayers * 16);
    ExpectNothingHeld();
    EXPECT_EQ(GoOn(sequence, *sink, outcome), ExpectedTokens(sequence));
    EXPECT_EQ(there_->stats().leases, 0);
  }
}

TEST_F(EngineMoves, RoundsThatDoNotGetShorterEnd) {
  const DecodeSequence sequence = Make();
  const auto sink = AddAtTheDoor(sequence);
  const auto carrier = Move(sequence, 1);
  for (int round = 1; round < 4; ++round) {
    carrier->AwaitSend();
    Steps(50);
    carrier->Deliver();
    if (round < 3) Steps(1);
  }
  door_.LetPass(1);
  carrier->AwaitSend();
  door_.Open();
  EXPECT_EQ(sink->moves(), 0u);
  carrier->Deliver();
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(carrier->sent(), 4);
  EXPECT_EQ(GoOn(sequence, *sink, sink->AwaitMove()), ExpectedTokens(sequence));
}

// The other worker has memory for so many from the beginning, and computes the rest.
TEST_F(EngineMoves, NoMoreGoesThanTheOtherOneTakes) {
  const DecodeSequence sequence = Make(/*draws=*/true);
  const auto sink = AddAtTheDoor(sequence);
  const auto carrier = Move(sequence, 10, kPrompt + 20);
  carrier->AwaitSend();
  Steps(100);
  DeliverAndStandStill(door_, *carrier);
  EXPECT_EQ(carrier->AwaitSend(), std::pair(kPrompt + 11, kPrompt + 20));
  door_.Open();
  carrier->Deliver();
  const MoveOutcome outcome = sink->AwaitMove();
  EXPECT_EQ(outcome.tokens, kPrompt + 20);
  EXPECT_EQ(GoOn(sequence, *sink, outcome), ExpectedTokens(sequence));
}

TEST_F(EngineMoves, WhatFailsOnTheWayLeavesItWhereItIs) {
  for (const bool stands_still : {false, true}) {
    const DecodeSequence sequence = Make(/*draws=*/true);
    const auto sink = AddAtTheDoor(sequence);
    const auto carrier = Move(sequence, 10);
    carrier->AwaitSend();
    if (stands_still) DeliverAndStandStill(door_, *carrier);
    door_.Open();
    carrier->Fail(absl::UnavailableError("the other one is gone"));
    const MoveOutcome outcome = sink->AwaitMove();
    EXPECT_TRUE(absl::IsUnavailable(outcome.status)) << outcome.status;
    EXPECT_EQ(outcome.bytes > 0, stands_still) << "what it had taken";
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(sink->ids(), ExpectedTokens(sequence));
    EXPECT_TRUE(carrier->cancelled());
    ExpectNothingHeld();
    there_->Release(lease_);
  }
}

TEST_F(EngineMoves, ItMayBeAskedAgain) {
  const DecodeSequence sequence = Make();
  const auto sink = AddAtTheDoor(sequence);
  Move(sequence, 10)->Fail(absl::UnavailableError("the other one is gone"));
  Steps(1);
  EXPECT_FALSE(sink->AwaitMove().status.ok());
  const auto carrier = Move(sequence, 5);
  EXPECT_EQ(carrier->AwaitSend().first, 0) << "from the first row on";
  DeliverAndStandStill(door_, *carrier);
  door_.Open();
  carrier->Deliver();
  EXPECT_EQ(GoOn(sequence, *sink, sink->AwaitMove(2)), ExpectedTokens(sequence));
}

TEST_F(EngineMoves, ACancelEndsItAtOnceAndItsRowsAreFreeWhenTheyHaveGone) {
  const DecodeSequence sequence = Make();
  const auto sink = AddAtTheDoor(sequence);
  const auto carrier = Move(sequence, 10);
  carrier->AwaitSend();
  engine_->Cancel(last_added_);
  door_.Open();
  EXPECT_TRUE(absl::IsCancelled(sink->AwaitEnd()));
  EXPECT_TRUE(carrier->cancelled());
  EXPECT_EQ(sink->moves(), 0u);
  EXPECT_GT(store_->stats().used_bytes, 0) << "they are read still";
  carrier->Fail(absl::CancelledError("not wanted"));
  ExpectNothingHeld();
}

TEST_F(EngineMoves, OneThatReachesItsEndMeanwhileHasNotMoved) {
  const DecodeSequence sequence = Make();
  const auto sink = AddAtTheDoor(sequence);
  const auto carrier = Move(sequence, 10);
  carrier->AwaitSend();
  door_.Open();
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), ExpectedTokens(sequence));
  carrier->Deliver();
  EXPECT_EQ(sink->moves(), 0u);
  ExpectNothingHeld();
}

TEST_F(EngineMoves, WhoIsBesideItGetsTokensWhileItStandsStill) {
  const DecodeSequence sequence = Make();
  const auto sink = AddAtTheDoor(sequence);
  const auto carrier = Move(sequence, 10);
  carrier->AwaitSend();
  const DecodeSequence other = MakeSequence(4, 20, 50);
  Fill(other);
  const auto beside = Add(other);
  carrier->Deliver();
  Steps(1);  // of both, from now on of the other alone
  carrier->AwaitSend();
  const size_t had = sink->ids().size();
  door_.Open();
  EXPECT_EQ(beside->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(beside->ids(), ExpectedTokens(other));
  EXPECT_EQ(sink->ids().size(), had);
  carrier->Deliver();
  EXPECT_EQ(GoOn(sequence, *sink, sink->AwaitMove()), ExpectedTokens(sequence));
}

// The other worker may be slow, or hang: that is not this one's fault.
TEST_F(EngineMoves, AnEngineAllOfWhoseSequencesStandStillIsNotComputing) {
  const DecodeSequence sequence = Make();
  const auto sink = AddAtTheDoor(sequence);
  const auto carrier = Move(sequence, 10);
  carrier->AwaitSend();
  EXPECT_TRUE(progress_->Read().computing) << "rows are on their way, and it steps meanwhile";
  DeliverAndStandStill(door_, *carrier);
  const uint64_t done = testing::AwaitRest(*progress_).done;
  clock_.Advance(absl::Seconds(20));  // the lease there lives for 30
  EXPECT_FALSE(progress_->Read().computing);
  EXPECT_EQ(progress_->Read().done, done);
  door_.Open();
  carrier->Deliver();
  EXPECT_EQ(GoOn(sequence, *sink, sink->AwaitMove()), ExpectedTokens(sequence));
}

// Its memory goes to the older one; the answer to what was sent of it comes late, and changes nothing.
TEST_F(EngineMoves, OneThatIsParkedMeanwhileComesBackHere) {
  MakeStore(8);
  MakeEngine(16, 64);
  const auto growing = [&](int seed) {
    const LeaseRequest request{.prompt_tokens = 300, .total_tokens = 1200, .expected_tokens = 300};
    DecodeSequence sequence = testing::MakeHashSequence(*store_, seed, request);
    Fill(sequence);
    return sequence;
  };
  const DecodeSequence first = growing(1), second = growing(2);
  const auto older = AddAtTheDoor(first), younger = Add(second);
  const auto carrier = Move(second, 10);
  door_.Open();
  carrier->AwaitSend();
  const MoveOutcome outcome = younger->AwaitMove();
  EXPECT_TRUE(absl::IsResourceExhausted(outcome.status)) << outcome.status;
  EXPECT_TRUE(carrier->cancelled());
  carrier->Deliver();
  EXPECT_EQ(older->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(younger->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(older->ids(), ExpectedTokens(first));
  EXPECT_EQ(younger->ids(), ExpectedTokens(second));
  EXPECT_EQ(younger->moves(), 1u);
  ExpectNothingHeld();
}

TEST_F(EngineMoves, OneThatCannotIsToldWhyAndGoesOn) {
  const auto carrier = std::make_shared<CopyingCarrier>(*there_, lease_);
  EXPECT_FALSE(engine_->Move(LeaseId{1, 2}, carrier, 100)) << "nobody has that lease";
  const DecodeSequence waits = MakeSequence(7, 40, 20);
  const auto sink = Add(waits);
  EXPECT_TRUE(engine_->Move(waits.lease, carrier, 60));
  const MoveOutcome early = sink->AwaitMove();
  EXPECT_TRUE(absl::IsFailedPrecondition(early.status)) << early.status;
  EXPECT_THAT(std::string(early.status.message()), HasSubstr("KV has not come"));
  Fill(waits);
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), ExpectedTokens(waits));
  EXPECT_EQ(carrier->sent(), 0);
}

TEST_F(EngineMoves, ASecondMoveBesideTheFirstIsRefused) {
  const DecodeSequence sequence = Make();
  const auto sink = AddAtTheDoor(sequence);
  const auto carrier = Move(sequence, 10);
  carrier->AwaitSend();
  EXPECT_TRUE(engine_->Move(sequence.lease, std::make_shared<CopyingCarrier>(*there_, lease_), 600));
  door_.Open();
  EXPECT_THAT(std::string(sink->AwaitMove().status.message()), HasSubstr("already"));
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  carrier->Deliver();
}

TEST_F(EngineMoves, WhoTakesOneChecksWhatHasCome) {
  DecodeSequence sequence = Make();
  sequence.moved_tokens = kPrompt;
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Add(sequence, std::make_shared<CollectingSink>()).status()))
      << "its lease is none that takes a sequence";
  DecodeSequence moved = MakeSequence(8, 40, 20);
  store_->Release(moved.lease);
  moved.lease = *store_->Reserve({.prompt_tokens = 40, .total_tokens = 60, .arriving_tokens = 50});
  moved.moved_tokens = 41;
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->Add(moved, std::make_shared<CollectingSink>()).status()))
      << "the last one's KV is computed here";
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
