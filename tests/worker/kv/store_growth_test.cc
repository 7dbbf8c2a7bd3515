// Leases that grow, and that are parked: what they have, what they are promised, and what that leaves to new ones.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/kv/growth_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST_F(KvStoreGrowth, ALeaseBeginsWithItsPromptAndAFirstPortionAndIsPromisedWhatIsExpected) {
  const LeaseId lease = *TryReserve(200, 1500, 900);
  EXPECT_EQ(Used(), KvBlocksFor(200 + kFirstPortion));
  EXPECT_EQ(Promised(), 4);
  EXPECT_EQ(Growable(), kBlocks - 4 - 1) << "a block is left to those that grow";
  EXPECT_TRUE(store_->SizeOf(lease)->grows);
  store_->Release(lease);
  EXPECT_EQ(Promised(), 0);
  EXPECT_EQ(Growable(), kBlocks);
}

TEST_F(KvStoreGrowth, OneOfWhichNothingIsExpectedHasAllOfItsMemory) {
  const LeaseId lease = Reserve(200, 1500);
  EXPECT_EQ(Used(), 6);
  EXPECT_EQ(Promised(), 6);
  EXPECT_FALSE(store_->SizeOf(lease)->grows);
}

TEST_F(KvStoreGrowth, TheFirstPortionIsNoMoreThanWhatIsExpected) {
  ASSERT_TRUE(TryReserve(250, 2000, 256).ok());
  EXPECT_EQ(Used(), 1);
  EXPECT_EQ(Promised(), 1) << "as many as whoever asks counts";
}

TEST_F(KvStoreGrowth, LeasesThatDoNotGrowLeaveNothingToGrowth) {
  Reserve(200, (kBlocks - 1) * kKvBlockTokens);
  EXPECT_EQ(Growable(), 1);
  EXPECT_TRUE(TryReserve(100, 200, 150).ok()) << "nobody beside it grows";
}

TEST_F(KvStoreGrowth, AGrowingSequenceCanLeaveMemoryToOthers) {
  KvStore::Sequence sequence = OpenOne(100, 2000, 100);
  EXPECT_EQ(sequence.Grow(2 * kKvBlockTokens, kBlocks - 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sequence.Grow(2 * kKvBlockTokens, kBlocks - 2), absl::OkStatus());
}

TEST_F(KvStoreGrowth, ExpectedTokensAreFromThePromptsToTheWhole) {
  for (const int64_t expected : {199, 1501, -1}) {
    const absl::Status refused = TryReserve(200, 1500, expected).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("expected_tokens"));
  }
  EXPECT_EQ(TryReserve(1, kBlocks * kKvBlockTokens + 1, 1).status().code(), absl::StatusCode::kOutOfRange)
      << "no empty store could hold it, whatever is expected";
}

TEST_F(KvStoreGrowth, WhatIsPromisedIsGivenToNoNewLease) {
  ASSERT_TRUE(TryReserve(100, 1500, 1400).ok());
  EXPECT_EQ(Used(), 1);
  EXPECT_EQ(Promised(), 6);
  const absl::Status grows = TryReserve(100, 600, 300).status(), full = TryReserve(100, 600, 600).status();
  EXPECT_EQ(grows.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(grows.message()),
              HasSubstr("512 tokens are wanted and 1792 of 2048 are free, of which 1536 are promised"));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(store_->Reserve({.prompt_tokens = 1, .total_tokens = 512}).ok()) << "it leaves nothing to growth";
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 1, .total_tokens = 1}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(KvStoreGrowth, WhateverFitsAnEmptyStoreIsTaken) {
  constexpr int64_t kAll = kBlocks * kKvBlockTokens;
  EXPECT_TRUE(TryReserve(kAll, kAll, kAll).ok());
}

TEST_F(KvStoreGrowth, GrownRowsKeepTheirsAndTakeWhatIsPromisedToOthers) {
  KvStore::Sequence sequence = OpenOne(100, 2000, 100);
  ASSERT_TRUE(TryReserve(100, 1500, 1400).ok());
  const int32_t first = sequence.blocks()[0];
  EXPECT_EQ(sequence.Grow(256), absl::OkStatus());
  EXPECT_EQ(Used(), 2);
  EXPECT_EQ(sequence.Grow(1792), absl::OkStatus());
  EXPECT_EQ(sequence.blocks().size(), 7u);
  EXPECT_EQ(sequence.blocks()[0], first);
  EXPECT_EQ(Used(), kBlocks);
  EXPECT_EQ(Promised(), kBlocks) << "of promises that cannot be kept now there is no more than memory";
  EXPECT_EQ(sequence.Grow(1793).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sequence.blocks().size(), 7u);
}

TEST_F(KvStoreGrowth, OneThatIsParkedCountsForWhatItComesBackWith) {
  KvStore::Sequence sequence = OpenOne(300, 1900, 400);
  ASSERT_EQ(sequence.Grow(800), absl::OkStatus());
  sequence.Park(1000);
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(Promised(), 4);
  EXPECT_TRUE(sequence.blocks().empty());
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 1, .total_tokens = 5 * kKvBlockTokens}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sequence.Grow(1000), absl::OkStatus());
  EXPECT_EQ(Used(), 4);
  EXPECT_EQ(Promised(), 4);
}

// A sender that repeats a slice whose acknowledgement was lost must not write into memory that others have now.
TEST_F(KvStoreGrowth, ALateSliceOfOneThatIsParkedWritesNothing) {
  const LeaseId lease = *TryReserve(300, 1000, 300);
  FillAll(lease, 300);
  absl::StatusOr<KvStore::Sequence> sequence = store_->Open(lease);
  ASSERT_TRUE(sequence.ok());
  absl::StatusOr<KvStore::Write> before = store_->BeginWrite(lease, 0, 0, 300);
  sequence->Park(556);
  absl::StatusOr<KvStore::Write> after = store_->BeginWrite(lease, 1, 100, 300);
  for (absl::StatusOr<KvStore::Write>* write : {&before, &after}) {
    ASSERT_TRUE(write->ok()) << write->status();
    EXPECT_TRUE((*write)->already_covered());
    EXPECT_TRUE((*write)->destination().empty());
    EXPECT_EQ((*write)->Commit().Wait(), absl::OkStatus());
  }
  EXPECT_EQ(Used(), 0);
}

TEST_F(KvStoreGrowth, OneThatWasParkedSharesNothingAndWhoSharedKeepsItsRows) {
  const LeaseId lease = *TryReserve(512, 1000, 512);
  FillAll(lease, 512);
  const auto share = [&] {
    return *store_->Reserve({.prompt_tokens = 512, .total_tokens = 512, .share = {lease, 512}});
  };
  const LeaseId early = share();
  EXPECT_EQ(store_->SizeOf(early)->shared_tokens, 512);
  absl::StatusOr<KvStore::Sequence> sequence = store_->Open(lease), other = store_->Open(early);
  ASSERT_TRUE(sequence.ok() && other.ok());
  const std::vector<int32_t> blocks(other->blocks().begin(), other->blocks().end());
  sequence->Park(768);
  EXPECT_EQ(Used(), 2);
  EXPECT_EQ(std::vector<int32_t>(other->blocks().begin(), other->blocks().end()), blocks);
  const LeaseId late = share();
  EXPECT_EQ(store_->SizeOf(late)->shared_tokens, 0);
  store_->Release(late);
  ASSERT_EQ(sequence->Grow(768), absl::OkStatus());
  EXPECT_EQ(store_->SizeOf(share())->shared_tokens, 0) << "who decodes has yet to make its rows";
}

TEST_F(KvStoreGrowth, WhoListensHearsWhenMemoryComesBack) {
  int freed = 0;
  store_->OnFreed([&freed] { ++freed; });
  store_->Release(Reserve(10, 20));
  EXPECT_EQ(freed, 1);
  Reserve(10, 20);
  clock_.Advance(absl::Seconds(31));
  store_->ReapExpired();
  EXPECT_EQ(freed, 2);
  {
    KvStore::Sequence sequence = OpenOne(10, 20, 10);
    sequence.Park(20);
    EXPECT_EQ(freed, 3);
  }
  EXPECT_EQ(freed, 3) << "it had none any more";
  const LeaseId written = Reserve(10, 20);
  {
    const absl::StatusOr<KvStore::Write> write = store_->BeginWrite(written, 0, 0, 10);
    store_->Release(written);
    EXPECT_EQ(freed, 3) << "bytes are under way";
  }
  EXPECT_EQ(freed, 4);
  store_->OnFreed(nullptr);
  store_->Release(Reserve(10, 20));
  EXPECT_EQ(freed, 4);
}

}  // namespace
}  // namespace runahead
