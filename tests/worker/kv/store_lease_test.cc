// How long a lease lives, and what becomes of its memory.
#include <utility>

#include "gtest/gtest.h"
#include "tests/testing/patience.h"
#include "tests/worker/kv/store_fixture.h"
#include "worker/kv/lease_reaper.h"

namespace runahead {
namespace {

using KvStoreLeaseTest = KvStoreTest;

TEST_F(KvStoreLeaseTest, ReleaseCancelsAndFreesWhenUnpinned) {
  const LeaseId lease = Reserve(10, 8 * kKvBlockTokens);
  const Event complete = store_->Complete(lease);
  absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, 0, 0, 10);
  ASSERT_TRUE(write.ok());
  store_->Release(lease);
  store_->Release(lease);
  EXPECT_EQ(complete.status()->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_EQ(store_->stats().used_bytes, store_->stats().capacity_bytes);
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 1, .total_tokens = 1}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(write->Commit().Wait().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(store_->Renew(lease).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Complete(lease).status()->code(), absl::StatusCode::kNotFound);
}

TEST_F(KvStoreLeaseTest, ASequenceHoldsTheMemoryAndReleasesTheLease) {
  const LeaseId lease = Reserve(10, 20);
  FillAll(lease, 10);
  {
    absl::StatusOr<KvStore::Sequence> opened = store_->Open(lease);
    ASSERT_TRUE(opened.ok());
    KvStore::Sequence sequence = *std::move(opened);
    EXPECT_EQ(store_->Open(lease).status().code(), absl::StatusCode::kFailedPrecondition);
    clock_.Advance(absl::Hours(1));
    EXPECT_EQ(store_->ReapExpired(), 0);
    EXPECT_EQ(store_->stats().leases, 1);
    store_->Release(lease);
    EXPECT_EQ(store_->stats().leases, 0);
    EXPECT_GT(store_->stats().used_bytes, 0);
  }
  EXPECT_EQ(store_->stats().used_bytes, 0);
  const LeaseId other = Reserve(10, 20);
  FillAll(other, 10);
  { ASSERT_TRUE(store_->Open(other).ok()); }
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(store_->stats().expired, 0);
}

TEST_F(KvStoreLeaseTest, AnEpochsLeasesEndWithItAndTheirMemoryWhenNothingPinsIt) {
  const LeaseId idle = Reserve(10, 20), written = Reserve(10, 20);
  const Event complete = store_->Complete(idle);
  absl::StatusOr<KvStore::Write> write = store_->BeginWrite(written, 0, 0, 10);
  ASSERT_TRUE(write.ok());
  store_->BeginEpoch(7);
  EXPECT_TRUE(absl::IsCancelled(complete.Wait(testing::LongestWait())));
  EXPECT_TRUE(absl::IsNotFound(store_->Renew(idle)));
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_GT(store_->stats().used_bytes, 0) << "the write pins its memory";
  EXPECT_TRUE(absl::IsNotFound(write->Commit().Wait()));
  EXPECT_EQ(store_->stats().used_bytes, 0);
  const LeaseId next = Reserve(10, 20);
  EXPECT_EQ(next.epoch, 7u);
  store_->Release({next.incarnation, next.number, 6});
  EXPECT_TRUE(store_->Renew(next).ok()) << "a release that came too late is of another epoch";
}

TEST_F(KvStoreLeaseTest, LivesThirtySecondsPastTheLastSign) {
  const LeaseId lease = Reserve(10, 20);
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(Fill(lease, 0, 0, 5).ok());
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(store_->Renew(lease).ok());
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(store_->ReapExpired(), 0);
  clock_.Advance(absl::Milliseconds(1));
  // Over, though nobody has reaped yet.
  EXPECT_EQ(store_->Renew(lease).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->BeginWrite(lease, 0, 5, 6).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Complete(lease).status()->code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->ReapExpired(), 1);
  EXPECT_EQ(store_->stats().expired, 1);
  EXPECT_EQ(store_->stats().used_bytes, 0);
}

TEST_F(KvStoreLeaseTest, BytesThatAreUnderWayKeepALeaseAlive) {
  const LeaseId lease = Reserve(10, 20);
  absl::StatusOr<KvStore::Write> slow = store_->BeginWrite(lease, 0, 0, 10);
  absl::StatusOr<KvStore::Write> lost = store_->BeginWrite(lease, 1, 0, 10);
  ASSERT_TRUE(slow.ok() && lost.ok());
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(store_->ReapExpired(), 0);
  EXPECT_TRUE(Fill(lease, 2, 0, 5).ok()) << "others write on";
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(slow->Commit().Wait(), absl::OkStatus());
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(store_->ReapExpired(), 0) << "the other write is open still";
  { const KvStore::Write ended = *std::move(lost); }  // its sender is gone
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(store_->ReapExpired(), 0) << "bytes that were lost are sent again";
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(store_->ReapExpired(), 1);
  EXPECT_EQ(store_->stats().used_bytes, 0);
}

TEST_F(KvStoreLeaseTest, WhoWaitsForItsKvHoldsALease) {
  const LeaseId filled = Reserve(10, 20), released = Reserve(10, 20);
  const Event complete = store_->Complete(filled), cancelled = store_->Complete(released);
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(store_->ReapExpired(), 0);
  FillAll(filled, 10);
  EXPECT_EQ(complete.status(), absl::OkStatus());
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(store_->ReapExpired(), 0) << "it is opened when its owner comes to it";
  EXPECT_TRUE(store_->Open(filled).ok());
  EXPECT_FALSE(cancelled.fired());
  store_->Release(released);
  EXPECT_EQ(cancelled.status()->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(store_->stats().expired, 0);
}

TEST_F(KvStoreLeaseTest, ReserveReapsWhenFull) {
  Reserve(1, 8 * kKvBlockTokens);
  clock_.Advance(absl::Seconds(31));
  Reserve(1, 8 * kKvBlockTokens);
  EXPECT_EQ(store_->stats().expired, 1);
}

TEST_F(KvStoreLeaseTest, EventsFireOutsideTheLock) {
  const LeaseId first = Reserve(10, 20), second = Reserve(10, 20), third = Reserve(10, 20);
  int calls = 0;
  for (const LeaseId& lease : {first, second, third}) {
    store_->Complete(lease).OnFire(
        [&](const absl::Status&) { calls += store_ == nullptr || store_->stats().leases >= 0; });
  }
  FillAll(first, 10);
  store_->Release(second);
  store_.reset();
  EXPECT_EQ(calls, 3);
}

TEST_F(KvStoreLeaseTest, ALeaseIsReapedUnderAFakeClockWithoutAnyRequest) {
  Reserve(10, 20);
  EventSource reaped;
  LeaseReaper reaper(*store_, clock_, [&reaped](int expired) {
    if (expired > 0) reaped.Fire(absl::OkStatus());
  });
  for (int second = 0; second < 32; ++second) {
    clock_.AwaitWaiters(1);
    EXPECT_FALSE(reaped.event().fired() && second <= 30);
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(reaped.event().Wait(testing::LongestWait()), absl::OkStatus());
  EXPECT_EQ(store_->stats().leases, 0);
}

}  // namespace
}  // namespace runahead
