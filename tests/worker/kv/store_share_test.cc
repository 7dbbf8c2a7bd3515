// Leases that share the first blocks of a prompt.
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/kv/sequence_rows.h"
#include "tests/worker/kv/store_fixture.h"

namespace runahead {
namespace {

class KvStoreShareTest : public KvStoreTest {
 protected:
  static constexpr int64_t kBlockBytes = kLayers * kKvBlockTokens * kRowBytes;

  LeaseId Share(int64_t prompt, int64_t total, const LeaseId& from, int64_t tokens) {
    const absl::StatusOr<LeaseId> lease =
        store_->Reserve({.prompt_tokens = prompt, .total_tokens = total, .share = {from, tokens}});
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.value_or(LeaseId{});
  }
  int64_t Shared(const LeaseId& lease) { return store_->SizeOf(lease)->shared_tokens; }
  int64_t UsedBlocks() { return store_->stats().used_bytes / kBlockBytes; }
  // Of a first lease of three blocks, whose prompt is in.
  LeaseId Filled() {
    const LeaseId lease = Reserve(600, 700);
    FillAll(lease, 600);
    return lease;
  }
};

TEST_F(KvStoreShareTest, SharesWholeBlocksThatBothPromptsHave) {
  const LeaseId first = Filled();
  EXPECT_EQ(Shared(first), 0);
  EXPECT_EQ(Shared(Share(600, 700, first, 511)), 256);
  EXPECT_EQ(Shared(Share(600, 600, first, 600)), 512) << "600 tokens are two whole blocks";
  EXPECT_EQ(Shared(Share(500, 500, first, 600)), 256) << "decode appends from token 500 on";
  EXPECT_EQ(Shared(Share(100, 100, first, 100)), 0);
  EXPECT_EQ(UsedBlocks(), 3 + 2 + 1 + 1 + 1);
  EXPECT_EQ(Shared(first), 512);
}

TEST_F(KvStoreShareTest, SharesOnlyWhatHasArrivedInEveryLayerAndIsNotWrittenAgain) {
  const LeaseId first = Reserve(600, 600);
  for (int64_t layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(Fill(first, layer, 0, layer == 1 ? 300 : 520).ok());
  {
    // Rows that have come, as a part of a range that has not: they are being written again.
    const absl::StatusOr<KvStore::Write> again = store_->BeginWrite(first, 0, 200, 600);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(Shared(Share(600, 600, first, 600)), 0);
  }
  EXPECT_EQ(Shared(Share(600, 600, first, 600)), 256);
}

TEST_F(KvStoreShareTest, WhatIsSharedHasArrivedAndIsTheSameMemory) {
  const LeaseId first = Filled();
  const LeaseId second = Share(700, 800, first, 600);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    absl::StatusOr<KvStore::Write> write = store_->BeginWrite(second, layer, 100, 512);
    ASSERT_TRUE(write.ok());
    EXPECT_TRUE(write->already_covered());
    EXPECT_TRUE(write->destination().empty());
    EXPECT_FALSE(store_->Complete(second).fired());
    ASSERT_TRUE(Fill(second, layer, 512, 700).ok());
  }
  EXPECT_TRUE(store_->Complete(second).fired());
  const absl::StatusOr<KvStore::Sequence> one = store_->Open(first), two = store_->Open(second);
  ASSERT_TRUE(one.ok() && two.ok());
  for (int64_t token : {0, 255, 256, 511}) {
    EXPECT_EQ(RowOf(*store_, *one, 1, token).data(), RowOf(*store_, *two, 1, token).data());
  }
  for (int64_t token : {512, 699})
    EXPECT_NE(RowOf(*store_, *one, 1, token).data(), RowOf(*store_, *two, 1, token).data());
  EXPECT_EQ(one->blocks().subspan(0, 2), two->blocks().subspan(0, 2));
}

// Whose KV has yet to be made from X cannot be read by a sequence that wants it.
TEST_F(KvStoreShareTest, OfALeaseWithXInsteadOfKvOnlyOneThatNeedsNoMoreKvTakesAShare) {
  KvStoreOptions options = store_->options();
  options.x_row_bytes = 8;
  store_ = *KvStore::Create(options, device_, clock_);
  const LeaseId first = *store_->Reserve({.prompt_tokens = 600, .total_tokens = 600, .with_x = true, .kv_from = 128});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(Fill(first, layer, 128, 600).ok());
    auto x = store_->BeginWrite(first, layer, 0, 600, SliceKind::kX);
    ASSERT_TRUE(x.ok() && x->Commit().Wait().ok());
  }
  const auto shared = [&](bool with_x, int64_t kv_from) {
    const LeaseId lease = *store_->Reserve(
        {.prompt_tokens = 600, .total_tokens = 600, .share = {first, 600}, .with_x = with_x, .kv_from = kv_from});
    const int64_t tokens = Shared(lease);
    store_->Release(lease);
    return tokens;
  };
  EXPECT_EQ(shared(true, 128), 512);
  EXPECT_EQ(shared(true, 192), 512);
  EXPECT_EQ(shared(true, 64), 0);
  EXPECT_EQ(shared(false, 0), 0);
}

TEST_F(KvStoreShareTest, APromptThatIsSharedAsAWholeIsComplete) {
  const LeaseId second = Share(512, 600, Filled(), 512);
  EXPECT_EQ(store_->Complete(second).status(), absl::OkStatus());
  EXPECT_TRUE(store_->Open(second).ok());
}

TEST_F(KvStoreShareTest, SharedRowsAreWrittenThroughNeitherLease) {
  const LeaseId first = Reserve(600, 600);
  for (int64_t layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(Fill(first, layer, 0, 256).ok());
  const LeaseId second = Share(600, 600, first, 256);
  for (const LeaseId& lease : {first, second}) {
    EXPECT_EQ(store_->BeginWrite(lease, 0, 255, 600).status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_TRUE(store_->BeginWrite(lease, 0, 0, 256)->already_covered());
    EXPECT_TRUE(Fill(lease, 0, 256, 600).ok());
  }
}

TEST_F(KvStoreShareTest, EitherLeaseMayEndFirst) {
  for (const bool first_ends_first : {true, false}) {
    const LeaseId first = Filled();
    const LeaseId second = Share(600, 1000, first, 600);
    EXPECT_EQ(UsedBlocks(), 3 + 2);
    store_->Release(first_ends_first ? first : second);
    EXPECT_EQ(UsedBlocks(), first_ends_first ? 4 : 3);
    EXPECT_EQ(store_->stats().leases, 1);
    Reserve(1, (first_ends_first ? 4 : 5) * kKvBlockTokens);  // all that is free
    EXPECT_EQ(store_->Reserve({.prompt_tokens = 1, .total_tokens = 1}).status().code(),
              absl::StatusCode::kResourceExhausted);
    store_->Release(first_ends_first ? second : first);
    EXPECT_EQ(UsedBlocks(), first_ends_first ? 4 : 5);
    store_->BeginEpoch(0);
    EXPECT_EQ(UsedBlocks(), 0);
  }
}

TEST_F(KvStoreShareTest, AThirdLeaseSharesWhatTheSecondShares) {
  const LeaseId first = Filled();
  const LeaseId second = Share(512, 512, first, 512);
  store_->Release(first);
  const LeaseId third = Share(512, 600, second, 512);
  EXPECT_EQ(UsedBlocks(), 3);
  store_->Release(second);
  EXPECT_EQ(UsedBlocks(), 3);
  EXPECT_TRUE(store_->Open(third).ok());
  EXPECT_EQ(UsedBlocks(), 0);
}

TEST_F(KvStoreShareTest, OneLeaseExpiresAndTheOtherLivesOn) {
  const LeaseId first = Filled();
  const LeaseId second = Share(600, 600, first, 600);
  clock_.Advance(absl::Seconds(20));
  ASSERT_TRUE(store_->Renew(second).ok());
  clock_.Advance(absl::Seconds(20));
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 600, .total_tokens = 600, .share = {first, 600}}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->ReapExpired(), 1);
  EXPECT_EQ(UsedBlocks(), 3);
  EXPECT_EQ(Shared(second), 512);
}

TEST_F(KvStoreShareTest, AWriteThatPinsADeadLeaseKeepsItsBlocksOnly) {
  const LeaseId first = Reserve(600, 600);
  for (int64_t layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(Fill(first, layer, 0, 256).ok());
  std::optional<KvStore::Write> write = *store_->BeginWrite(first, 0, 256, 600);
  const LeaseId second = Share(300, 512, first, 600);
  EXPECT_EQ(UsedBlocks(), 3 + 1);
  store_->Release(first);
  store_->Release(second);
  EXPECT_EQ(UsedBlocks(), 3) << "the write pins what the first lease has, shared or not";
  write.reset();
  EXPECT_EQ(UsedBlocks(), 0);
}

TEST_F(KvStoreShareTest, AnOpenDecodeKeepsWhatItSharesAlive) {
  const LeaseId first = Filled();
  const LeaseId second = Share(600, 600, first, 600);
  std::optional<KvStore::Sequence> sequence = *store_->Open(first);
  store_->Release(first);
  store_->Release(second);
  EXPECT_EQ(UsedBlocks(), 3);
  const LeaseId third = Filled();
  const LeaseId fourth = Share(600, 600, third, 600);
  std::optional<KvStore::Sequence> other = *store_->Open(third);
  other.reset();
  EXPECT_EQ(UsedBlocks(), 3 + 3) << "the decode has ended, and another lease needs two of its blocks";
  store_->Release(fourth);
  sequence.reset();
  EXPECT_EQ(UsedBlocks(), 0);
}

TEST_F(KvStoreShareTest, TakesOnlyWhatItDoesNotShare) {
  const LeaseId first = Filled();
  Reserve(1, 4 * kKvBlockTokens);
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 600, .total_tokens = 600}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Shared(Share(600, 600, first, 600)), 512);
  EXPECT_EQ(store_->stats().used_bytes, store_->stats().capacity_bytes);
}

TEST_F(KvStoreShareTest, RefusesToShareWhatIsNotThere) {
  const LeaseId first = Filled();
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 600, .total_tokens = 600, .share = {first, -1}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  store_->Release(first);
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 600, .total_tokens = 600, .share = {first, 600}}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(UsedBlocks(), 0);
}

// Of 1,000 tokens a window of 200 leaves 801 to 999, of 1,100 tokens 901 to 1,099.
TEST_F(KvStoreShareTest, WhatAWindowHidIsSharedWithThoseOnlyThatDoNotSeeIt) {
  KvStoreOptions options = store_->options();
  options.capacity_tokens = 64 * kKvBlockTokens;
  options.windows = {0, 200, 200};
  store_ = *KvStore::Create(options, device_, clock_);
  const LeaseId first = Reserve(1000, 1000);
  ASSERT_TRUE(Fill(first, 0, 0, 1000).ok());
  for (int64_t layer : {1, 2}) ASSERT_TRUE(Fill(first, layer, 801, 1000).ok());
  EXPECT_EQ(Shared(Share(1000, 1000, first, 1000)), 768);
  const LeaseId longer = Share(1100, 1100, first, 1000);
  EXPECT_EQ(Shared(longer), 768);
  EXPECT_EQ(Shared(Share(800, 800, first, 1000)), 512) << "it sees 601 on";
  EXPECT_EQ(Shared(Share(300, 300, first, 1000)), 0) << "it sees 101 on";
  EXPECT_EQ(Shared(Share(1000, 1000, longer, 1100)), 768) << "before what either of them sees";
  EXPECT_EQ(Shared(Share(900, 900, longer, 1100)), 512) << "it sees 701 on";
}

}  // namespace
}  // namespace runahead
