// A store in device memory that the host cannot write: slices pass through the bounce buffer.
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/worker/kv/failing_device.h"
#include "tests/worker/kv/sequence_rows.h"
#include "tests/worker/kv/store_fixture.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class KvStoreTierTest : public ::testing::Test {
 protected:
  static KvStoreOptions Options() {
    KvStoreOptions options{kLayers, kRowBytes, kBlocks * kKvBlockTokens, 99};
    options.tier = MemoryKind::kDevice;
    return options;
  }
  static absl::Status Await(const Event& event) { return event.Wait(testing::LongestWait()); }
  // A ready write with bytes that tell layer and token.
  KvStore::Write Written(const LeaseId& lease, int64_t layer, int64_t begin, int64_t end) {
    absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, layer, begin, end);
    RUNAHEAD_CHECK(write.ok());
    RUNAHEAD_CHECK(Await(write->ready()).ok());
    const std::string bytes = Rows(layer, begin, end);
    size_t written = 0;
    for (const BufferRef& ref : write->destination()) {
      std::memcpy(ref.data(), bytes.data() + written, ref.size);
      written += ref.size;
    }
    RUNAHEAD_CHECK(written == bytes.size());
    return *std::move(write);
  }
  static std::string Rows(int64_t layer, int64_t begin, int64_t end) {
    std::string rows;
    for (int64_t i = begin * kRowBytes; i < end * kRowBytes; ++i) rows += static_cast<char>((layer * 131 + i) % 251);
    return rows;
  }
  std::string Stored(const std::vector<KvSpan>& spans) {
    std::string bytes;
    for (const KvSpan& span : spans) bytes += device_.Peek(span.rows);
    return bytes;
  }

  testing::FailingDevice device_;
  testing::FakeClock clock_;
  std::unique_ptr<KvStore> store_ = *KvStore::Create(Options(), device_, clock_);
};

TEST_F(KvStoreTierTest, BytesArriveInEveryLayerAndInBlocksThatDoNotTouch) {
  std::vector<LeaseId> small;
  for (int i = 0; i < kBlocks; ++i) small.push_back(*store_->Reserve({.prompt_tokens = 1, .total_tokens = 1}));
  for (const int i : {1, 2, 4, 6}) store_->Release(small[i]);
  const LeaseId lease = *store_->Reserve({.prompt_tokens = 900, .total_tokens = 1000});
  const Event complete = store_->Complete(lease);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 700}, {700, 900}}) {
      ASSERT_EQ(Await(Written(lease, layer, begin, end).Commit()), absl::OkStatus());
    }
  }
  EXPECT_EQ(complete.status(), absl::OkStatus());
  const absl::StatusOr<KvStore::Sequence> sequence = store_->Open(lease);
  ASSERT_TRUE(sequence.ok());
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(Stored(SpansOf(*store_, *sequence, layer)).substr(0, 900 * kRowBytes), Rows(layer, 0, 900))
        << "layer " << layer;
    EXPECT_EQ(Stored(SpansOf(*store_, *sequence, layer, 899, 900)), Rows(layer, 899, 900));
  }
}

TEST_F(KvStoreTierTest, ASliceIsInWhenItsCopyHasRun) {
  const LeaseId lease = *store_->Reserve({.prompt_tokens = 10, .total_tokens = 10});
  const Event complete = store_->Complete(lease);
  for (int64_t layer = 1; layer < kLayers; ++layer) ASSERT_TRUE(Await(Written(lease, layer, 0, 10).Commit()).ok());
  EventSource gate;
  device_.HoldCopies(gate.event());
  const Event committed = Written(lease, 0, 0, 10).Commit();
  EXPECT_FALSE(committed.fired());
  EXPECT_FALSE(complete.fired());
  EXPECT_EQ(store_->Open(lease).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->BeginWrite(lease, 0, 0, 10).status().code(), absl::StatusCode::kAborted) << "it is under way";
  gate.Fire(absl::OkStatus());
  EXPECT_EQ(Await(committed), absl::OkStatus());
  EXPECT_EQ(complete.status(), absl::OkStatus());
  EXPECT_TRUE(store_->BeginWrite(lease, 0, 0, 10)->already_covered());
}

TEST_F(KvStoreTierTest, WritesGetRoomInTheOrderInWhichTheyBegan) {
  const LeaseId lease =
      *store_->Reserve({.prompt_tokens = kBlocks * kKvBlockTokens, .total_tokens = kBlocks * kKvBlockTokens});
  EventSource gate;
  device_.HoldCopies(gate.event());
  const Event committed = Written(lease, 0, 0, kBlocks * kKvBlockTokens).Commit();
  std::optional<KvStore::Write> large = *store_->BeginWrite(lease, 1, 0, kBlocks * kKvBlockTokens);
  const absl::StatusOr<KvStore::Write> small = store_->BeginWrite(lease, 2, 5, 6);
  const absl::StatusOr<KvStore::Write> last = store_->BeginWrite(lease, 2, 6, 7);
  ASSERT_TRUE(small.ok() && last.ok());
  device_.AwaitCopyEnqueued();
  EXPECT_FALSE(large->ready().fired() || small->ready().fired());
  gate.Fire(absl::OkStatus());
  ASSERT_EQ(Await(committed), absl::OkStatus());
  EXPECT_EQ(large->ready().status(), absl::OkStatus());
  EXPECT_FALSE(small->ready().fired()) << "the one before it has all the room";
  large.reset();
  EXPECT_TRUE(small->ready().fired() && last->ready().fired());
}

TEST_F(KvStoreTierTest, AWriteThatIsGivenUpWhileItWaitsHoldsNothing) {
  const LeaseId lease =
      *store_->Reserve({.prompt_tokens = kBlocks * kKvBlockTokens, .total_tokens = kBlocks * kKvBlockTokens});
  const KvStore::Write all = Written(lease, 0, 0, kBlocks * kKvBlockTokens);
  { ASSERT_TRUE(store_->BeginWrite(lease, 1, 0, 10).ok()); }
  const absl::StatusOr<KvStore::Write> again = store_->BeginWrite(lease, 1, 0, 10);
  ASSERT_TRUE(again.ok()) << "its rows are nobody's";
  EXPECT_FALSE(again->ready().fired());
}

TEST_F(KvStoreTierTest, AFailedCopyLosesTheBytesAndNothingElse) {
  const LeaseId lease = *store_->Reserve({.prompt_tokens = 10, .total_tokens = 10});
  for (const bool refused : {true, false}) {
    refused ? device_.RefuseCopies(1) : device_.FailEvents(1);
    clock_.Advance(absl::Seconds(20));
    EXPECT_EQ(Await(Written(lease, 0, 0, 10).Commit()).code(),
              refused ? absl::StatusCode::kInternal : absl::StatusCode::kDataLoss);
    EXPECT_FALSE(store_->BeginWrite(lease, 0, 0, 1)->already_covered());
    clock_.Advance(absl::Seconds(20));
    EXPECT_TRUE(store_->Renew(lease).ok()) << "bytes that were lost are sent again";
  }
  EXPECT_EQ(Await(Written(lease, 0, 0, 10).Commit()), absl::OkStatus());
  EXPECT_TRUE(store_->BeginWrite(lease, 0, 0, 10)->already_covered());
}

TEST_F(KvStoreTierTest, ALeaseThatEndsKeepsItsMemoryUntilTheCopyHasRun) {
  const LeaseId lease = *store_->Reserve({.prompt_tokens = 10, .total_tokens = kBlocks * kKvBlockTokens});
  EventSource gate;
  device_.HoldCopies(gate.event());
  const Event committed = Written(lease, 0, 0, 10).Commit();
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(store_->ReapExpired(), 0) << "its bytes are under way";
  store_->Release(lease);
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 1, .total_tokens = 1}).status().code(),
            absl::StatusCode::kResourceExhausted);
  gate.Fire(absl::OkStatus());
  EXPECT_EQ(Await(committed).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_TRUE(store_->Reserve({.prompt_tokens = 1, .total_tokens = 1}).ok());
}

TEST_F(KvStoreTierTest, TheStoreOutlivesTheCopiesOfItsWrites) {
  const LeaseId lease = *store_->Reserve({.prompt_tokens = 10, .total_tokens = 10});
  const Event complete = store_->Complete(lease);
  EventSource gate;
  device_.HoldCopies(gate.event());
  const Event committed = Written(lease, 0, 0, 10).Commit();
  std::thread closing([this] { store_.reset(); });
  device_.AwaitCopyEnqueued();
  gate.Fire(absl::OkStatus());
  closing.join();
  EXPECT_EQ(committed.status(), absl::OkStatus());
  EXPECT_EQ(complete.status()->code(), absl::StatusCode::kCancelled);
}

TEST_F(KvStoreTierTest, RefusesABounceBufferThatASliceWouldNotFit) {
  KvStoreOptions options = Options();
  options.bounce_bytes = kBlocks * kKvBlockTokens * kRowBytes;
  EXPECT_TRUE(KvStore::Create(options, device_, clock_).ok());
  --options.bounce_bytes;
  const absl::Status refused = KvStore::Create(options, device_, clock_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("49151"), HasSubstr("49152")));
  options.tier = MemoryKind::kHost;
  EXPECT_TRUE(KvStore::Create(options, device_, clock_).ok()) << "nothing passes through one";
}

TEST_F(KvStoreTierTest, WhatTheHostWritesTakesNoBounceBuffer) {
  testing::FakeDevice near;
  const auto direct = KvStore::Create(Options(), near, clock_);
  KvStoreOptions options = Options();
  options.tier = MemoryKind::kHost;
  const size_t before = device_.host_bytes();
  const auto host = KvStore::Create(options, device_, clock_);
  ASSERT_TRUE(direct.ok() && host.ok());
  EXPECT_EQ(device_.host_bytes() - before, static_cast<size_t>((*host)->stats().capacity_bytes));
  for (KvStore* const store : {direct->get(), host->get()}) {
    const LeaseId lease = *store->Reserve({.prompt_tokens = 10, .total_tokens = 10});
    absl::StatusOr<KvStore::Write> write = store->BeginWrite(lease, 1, 0, 10);
    ASSERT_TRUE(write.ok());
    EXPECT_EQ(write->ready().status(), absl::OkStatus());
    EXPECT_EQ(write->destination()[0].data(), store->arena().Layer(1).data());
    EXPECT_EQ(write->Commit().status(), absl::OkStatus());
  }
  EXPECT_EQ(near.copied_bytes(), 0);
  EXPECT_EQ(device_.copies(), 0);
}

// A bounce buffer of one layer of the store for eight writers: whose bytes are whose, and does all of it end?
TEST_F(KvStoreTierTest, ThreadsTakeTurnsInTheBounceBuffer) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([this, thread] {
      for (int round = 0; round < 20; ++round) {
        const absl::StatusOr<LeaseId> lease = store_->Reserve({.prompt_tokens = 256, .total_tokens = 256});
        ASSERT_TRUE(lease.ok()) << lease.status();
        std::vector<Event> committed;
        for (int64_t layer = 0; layer < kLayers; ++layer) {
          for (const int64_t begin : {0, 128}) {
            committed.push_back(Written(*lease, layer, begin, begin + 128).Commit());
          }
        }
        if ((round + thread) % 3 == 0) {
          store_->Release(*lease);
          for (const Event& event : committed) Await(event).IgnoreError();
          continue;
        }
        ASSERT_EQ(Await(store_->Complete(*lease)), absl::OkStatus());
        const absl::StatusOr<KvStore::Sequence> sequence = store_->Open(*lease);
        ASSERT_TRUE(sequence.ok());
        const int64_t layer = round % kLayers;
        ASSERT_EQ(Stored(SpansOf(*store_, *sequence, layer)), Rows(layer, 0, 256));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->stats().used_bytes, 0);
}

}  // namespace
}  // namespace runahead
