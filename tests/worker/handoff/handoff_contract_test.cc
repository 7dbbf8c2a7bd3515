// What every hand-off does. The tests of each kind instantiate it; it runs over all of them.
#include "tests/worker/handoff/handoff_contract.h"

namespace runahead::testing {

TEST_P(HandoffContract, SlicesOfSeveralSendersCompleteALease) {
  constexpr int64_t kTokens = 700;
  const LeaseId lease = Reserve(kTokens);
  const int64_t parts[] = {0, 1, 400, kTokens};  // one token travels with its header, the others do not
  std::vector<Event> pushed;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int i = 0; i < 3; ++i) {
      const Slice slice{lease, static_cast<int32_t>(layer), parts[i], parts[i + 1]};
      pushed.push_back(Push(i, slice, Rows(layer, parts[i], parts[i + 1], kTokens)));
    }
  }
  for (const Event& event : pushed) EXPECT_TRUE(Await(event).ok()) << *event.status();
  ExpectComplete(lease, kTokens);
  EXPECT_EQ(world_->retries, 0);
}

TEST_P(HandoffContract, ASliceGoesIntoBlocksThatDoNotTouch) {
  std::vector<LeaseId> taken;
  for (int i = 0; i < 8; ++i) taken.push_back(Reserve(kKvBlockTokens));
  for (const int i : {1, 3, 5}) world_->store->Release(taken[i]);
  constexpr int64_t kTokens = 3 * kKvBlockTokens - 5;
  const LeaseId lease = Reserve(kTokens);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_TRUE(
        Await(Push(0, {lease, static_cast<int32_t>(layer), 0, kTokens}, Rows(layer, 0, kTokens, kTokens))).ok());
  }
  ExpectComplete(lease, kTokens);
}

TEST_P(HandoffContract, WhatArrivesCorruptIsSentAgain) {
  constexpr int64_t kTokens = 300;
  const LeaseId lease = Reserve(kTokens);
  world_->sending.CorruptSends(2);
  EXPECT_TRUE(Await(Push(0, {lease, 0, 0, kTokens}, Rows(0, 0, kTokens, kTokens))).ok());
  EXPECT_TRUE(Await(Push(0, {lease, 1, 0, kTokens}, Rows(1, 0, kTokens, kTokens))).ok());
  ExpectComplete(lease, kTokens);
  EXPECT_EQ(world_->retries, 2);
  EXPECT_EQ(world_->corrupt, 2);
}

TEST_P(HandoffContract, CorruptThreeTimesIsDataLossAndLeavesTheLeaseAsItWas) {
  constexpr int64_t kTokens = 300;
  const LeaseId lease = Reserve(kTokens);
  world_->sending.CorruptSends(3);
  EXPECT_EQ(Code(Push(0, {lease, 0, 0, kTokens}, Rows(0, 0, kTokens, kTokens))), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(world_->store->Complete(lease).fired());
  EXPECT_TRUE(Await(Push(0, {lease, 0, 0, kTokens}, Rows(0, 0, kTokens, kTokens))).ok());
  EXPECT_TRUE(Await(Push(0, {lease, 1, 0, kTokens}, Rows(1, 0, kTokens, kTokens))).ok());
  ExpectComplete(lease, kTokens);
}

TEST_P(HandoffContract, WithoutALeaseItIsNotFound) {
  EXPECT_EQ(Code(Push(0, {{77, 99}, 0, 0, 300}, Pattern(300 * kRowBytes, 1))), absl::StatusCode::kNotFound);
  EXPECT_EQ(Code(Push(0, {{78, 1}, 0, 0, 1}, Pattern(kRowBytes, 1))), absl::StatusCode::kNotFound);
  const LeaseId lease = Reserve(300);
  world_->store->Release(lease);
  EXPECT_EQ(Code(Push(0, {lease, 0, 0, 300}, Pattern(300 * kRowBytes, 1))), absl::StatusCode::kNotFound);
  const LeaseId expired = Reserve(300);
  world_->clock.Advance(kLeaseLife + absl::Seconds(1));
  EXPECT_EQ(Code(Push(0, {expired, 0, 0, 300}, Pattern(300 * kRowBytes, 1))), absl::StatusCode::kNotFound);
}

TEST_P(HandoffContract, WhatDoesNotFitTheLeaseIsOutOfRange) {
  const LeaseId lease = Reserve(300);
  const auto refused = [&](const Slice& slice, int64_t rows) {
    return Code(Push(0, slice, Pattern(rows * kRowBytes, 1)));
  };
  const auto kOutOfRange = absl::StatusCode::kOutOfRange;
  EXPECT_EQ(refused({lease, 0, 0, 301}, 301), kOutOfRange);
  EXPECT_EQ(refused({lease, kLayers, 0, 300}, 300), kOutOfRange);
  EXPECT_EQ(refused({lease, -1, 0, 300}, 300), kOutOfRange);
  EXPECT_EQ(refused({lease, 0, -1, 299}, 300), kOutOfRange);
  EXPECT_EQ(refused({lease, 0, 200, 200}, 1), kOutOfRange);
  EXPECT_EQ(refused({lease, 0, 200, 100}, 1), kOutOfRange);
  EXPECT_EQ(refused({lease, 0, 0, int64_t{1} << 62}, 300), kOutOfRange);
  EXPECT_EQ(refused({lease, 0, 0, 300}, 299), kOutOfRange);
  EXPECT_EQ(refused({lease, 0, 0, 300, SliceKind::kX}, 300), kOutOfRange);
  EXPECT_EQ(refused({lease, 0, 0, 300, SliceKind::kKv, RowForm::kBF16}, 300), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Await(Push(0, {lease, 0, 0, 300}, Pattern(300 * kRowBytes, 1))).ok());
}

TEST_P(HandoffContract, ALeaseThatTakesXIsCompleteWhenXIsInToo) {
  if (world_->store->x_arena() == nullptr) return ExpectNoLeaseWithX();
  constexpr int64_t kTokens = 300;
  const LeaseId lease = Reserve(kTokens, /*with_x=*/true);
  const Event complete = world_->store->Complete(lease);
  const auto push_x = [&](int process, int32_t layer, int64_t begin, int64_t end) {
    return Await(Push(process, {lease, layer, begin, end, SliceKind::kX}, XRows(layer, begin, end, kTokens)));
  };
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_TRUE(Await(Push(0, {lease, layer, 0, kTokens}, Rows(layer, 0, kTokens, kTokens))).ok());
    EXPECT_FALSE(complete.fired());
    EXPECT_TRUE(push_x(1, layer, 0, 299).ok());
    EXPECT_FALSE(complete.fired());
    EXPECT_TRUE(push_x(2, layer, 299, kTokens).ok());
  }
  EXPECT_TRUE(complete.fired());
  const auto sequence = world_->store->Open(lease);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_TRUE(sequence->has_x());
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    std::string x;
    for (const KvSpan& span : world_->store->x_arena()->Spans(sequence->blocks(), layer, 0, kTokens)) {
      x += world_->device.Peek(span.rows);
    }
    EXPECT_EQ(x, Bytes(XRows(layer, 0, kTokens, kTokens))) << "layer " << layer;
  }
}

TEST_P(HandoffContract, XInsteadOfKvCompletesALeaseAndKvThatComesAllTheSameIsTaken) {
  if (world_->store->x_arena() == nullptr) return ExpectNoLeaseWithX();
  constexpr int64_t kTokens = 300, kKvFrom = 128;
  for (const int64_t from : {kKvFrom, int64_t{0}, int64_t{100}}) {  // the others as from workers of another build
    SCOPED_TRACE(from);
    const LeaseId lease = Reserve(kTokens, /*with_x=*/true, kKvFrom);
    const Event complete = world_->store->Complete(lease);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_TRUE(Await(Push(1, {lease, layer, 0, kTokens, SliceKind::kX}, XRows(layer, 0, kTokens, kTokens))).ok());
      EXPECT_TRUE(Await(Push(0, {lease, layer, 0, 64}, Rows(layer, 0, 64, kTokens))).ok()) << "nobody needs it";
      EXPECT_FALSE(complete.fired());
      EXPECT_TRUE(Await(Push(2, {lease, layer, from, kTokens}, Rows(layer, from, kTokens, kTokens))).ok());
    }
    EXPECT_TRUE(complete.fired());
    const auto sequence = world_->store->Open(lease);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    EXPECT_EQ(sequence->kv_from(), kKvFrom);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      std::string rows;
      for (const KvSpan& span : world_->store->arena().Spans(sequence->blocks(), layer, kKvFrom, kTokens)) {
        rows += world_->device.Peek(span.rows);
      }
      EXPECT_EQ(rows, Bytes(Rows(layer, kKvFrom, kTokens, kTokens))) << "layer " << layer;
    }
  }
}

TEST_P(HandoffContract, XThatIsCorruptIsSentAgain) {
  if (world_->store->x_arena() == nullptr) return ExpectNoLeaseWithX();
  const LeaseId lease = Reserve(300, /*with_x=*/true);
  world_->sending.CorruptSends(1);
  EXPECT_TRUE(Await(Push(0, {lease, 0, 0, 300, SliceKind::kX}, XRows(0, 0, 300, 300))).ok());
  EXPECT_EQ(world_->retries, 1);
  EXPECT_EQ(world_->corrupt, 1);
}

TEST_P(HandoffContract, XThatTheLeaseOrTheStoreDoesNotTakeIsOutOfRange) {
  const bool keeps_x = world_->store->x_arena() != nullptr;
  const auto refused = [&](const Slice& slice, size_t bytes) { return Await(Push(0, slice, Pattern(bytes, 1))); };
  const auto kOutOfRange = absl::StatusCode::kOutOfRange;
  const LeaseId without = Reserve(300);
  const absl::Status status = refused({without, 1, 0, 300, SliceKind::kX}, 300 * kXRowBytes);
  EXPECT_EQ(status.code(), kOutOfRange);
  EXPECT_THAT(std::string(status.message()), ::testing::StartsWith("X of layer 1, tokens [0, 300) of lease "));
  EXPECT_EQ(refused({without, 1, 0, 300, SliceKind::kX}, 0).code(), kOutOfRange);
  EXPECT_TRUE(Await(Push(0, {without, 1, 0, 300}, Rows(1, 0, 300, 300))).ok());
  if (!keeps_x) return;
  const LeaseId with = Reserve(300, /*with_x=*/true);
  EXPECT_EQ(refused({with, 0, 0, 300, SliceKind::kX}, 300 * kRowBytes).code(), kOutOfRange);
  EXPECT_EQ(refused({with, 0, 0, 300, SliceKind::kX}, 299 * kXRowBytes).code(), kOutOfRange);
  const absl::Status other = refused({with, 0, 0, 300, SliceKind::kX, RowForm::kQ8}, 300 * kXRowBytes);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), ::testing::StartsWith("dtype: X of layer 0, tokens [0, 300) of lease "));
  EXPECT_THAT(std::string(other.message()), ::testing::HasSubstr(" comes in q8, "));
  EXPECT_EQ(refused({with, 0, 0, 301, SliceKind::kX}, 301 * kXRowBytes).code(), kOutOfRange);
  EXPECT_EQ(refused({with, 0, 0, 300}, 300 * kXRowBytes).code(), kOutOfRange);
  EXPECT_TRUE(refused({with, 0, 0, 300, SliceKind::kX}, 300 * kXRowBytes).ok());
}

TEST_P(HandoffContract, ASliceThatIsInAlreadyIsAcknowledgedAndNotWritten) {
  constexpr int64_t kTokens = 300;
  const LeaseId lease = Reserve(kTokens);
  EXPECT_TRUE(Await(Push(0, {lease, 0, 0, kTokens}, Rows(0, 0, kTokens, kTokens))).ok());
  EXPECT_TRUE(Await(Push(1, {lease, 0, 0, kTokens}, Pattern(kTokens * kRowBytes, 99))).ok());
  EXPECT_TRUE(Await(Push(2, {lease, 0, 10, 20}, Pattern(10 * kRowBytes, 99))).ok());
  EXPECT_TRUE(Await(Push(0, {lease, 1, 0, kTokens}, Rows(1, 0, kTokens, kTokens))).ok());
  ExpectComplete(lease, kTokens);
}

TEST_P(HandoffContract, TheSameSliceFromSeveralSendersAtOnceIsAcknowledgedToAll) {
  constexpr int64_t kTokens = 2000;
  const LeaseId lease = Reserve(kTokens);
  std::vector<Event> pushed;
  for (int i = 0; i < 9; ++i) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      pushed.push_back(Push(i % 3, {lease, layer, 0, kTokens}, Rows(layer, 0, kTokens, kTokens)));
    }
  }
  for (const Event& event : pushed) EXPECT_TRUE(Await(event).ok()) << *event.status();
  ExpectComplete(lease, kTokens);
}

TEST_P(HandoffContract, APushWaitsForItsEventAndCarriesItsFailure) {
  const LeaseId lease = Reserve(300);
  EventSource computed, failed;
  const Event pushed = Push(0, {lease, 0, 0, 300}, Rows(0, 0, 300, 300), computed.event());
  const Event refused = Push(0, {lease, 1, 0, 300}, Rows(1, 0, 300, 300), failed.event());
  failed.Fire(absl::InternalError("compute failed"));
  EXPECT_EQ(Code(refused), absl::StatusCode::kInternal);
  EXPECT_FALSE(pushed.fired());
  computed.Fire(absl::OkStatus());
  EXPECT_TRUE(Await(pushed).ok());
}

TEST_P(HandoffContract, CancelStopsWhatIsNotOnTheWireAndLeavesOtherLeases) {
  const LeaseId lease = Reserve(300), other = Reserve(300);
  EventSource never, computed;
  const Event waiting = Push(0, {lease, 0, 0, 300}, Rows(0, 0, 300, 300), never.event());
  const Event unharmed = Push(0, {other, 0, 0, 300}, Rows(0, 0, 300, 300), computed.event());
  world_->sender(0).Cancel(lease);
  EXPECT_EQ(Code(waiting), absl::StatusCode::kCancelled);
  computed.Fire(absl::OkStatus());
  EXPECT_TRUE(Await(unharmed).ok());
  never.Fire(absl::OkStatus());  // too late to matter
}

TEST_P(HandoffContract, ABlockedHandoffFiresWhenItIsReleased) {
  constexpr int64_t kTokens = 300;
  const LeaseId lease = Reserve(kTokens);
  world_->receiving.HoldVerdicts();
  BufferRef bytes = Rows(0, 0, kTokens, kTokens);
  const Event pushed = Push(0, {lease, 0, 0, kTokens}, bytes);
  const Event other = Push(1, {lease, 1, 0, kTokens}, Rows(1, 0, kTokens, kTokens));
  ExpectComplete(lease, kTokens);  // all is in, and nobody was told
  EXPECT_FALSE(pushed.fired());
  EXPECT_FALSE(other.fired());
  world_->receiving.ReleaseVerdicts();
  EXPECT_TRUE(Await(pushed).ok());
  EXPECT_TRUE(Await(other).ok());
}

}  // namespace runahead::testing
