// Leases of whose prompt only the first tokens are handed off.
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/kv/store_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

class KvStoreHandedTest : public KvStoreTest {
 protected:
  // Reserves a lease for a prompt of 600 tokens.
  LeaseId ReservePart(int64_t handed) {
    const absl::StatusOr<LeaseId> lease =
        store_->Reserve({.prompt_tokens = 600, .total_tokens = 700, .handed_tokens = handed});
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.value_or(LeaseId{});
  }
};

TEST_F(KvStoreHandedTest, AreCompleteWithTheseAndSayHowManyTheyAre) {
  EXPECT_EQ(store_->SizeOf(Reserve(600, 700))->handed_tokens, 600);
  const int64_t before = store_->stats().kv.expected_bytes;
  const LeaseId lease = ReservePart(300);
  EXPECT_EQ(store_->SizeOf(lease)->handed_tokens, 300);
  EXPECT_EQ(store_->stats().kv.expected_bytes - before, kLayers * 300 * kRowBytes);
  const Event complete = store_->Complete(lease);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_FALSE(complete.fired());
    EXPECT_TRUE(Fill(lease, layer, 0, 300).ok());
  }
  EXPECT_TRUE(complete.fired());
  const KvStore::Sequence sequence = *store_->Open(lease);
  EXPECT_EQ(sequence.prompt_tokens(), 600);
  EXPECT_EQ(sequence.handed_tokens(), 300);
  EXPECT_EQ(sequence.blocks().size(), 3u);
}

TEST_F(KvStoreHandedTest, WithNoneOfItAreCompleteAtOnce) {
  const LeaseId lease = ReservePart(0);
  EXPECT_TRUE(store_->Complete(lease).fired());
  EXPECT_EQ(store_->Open(lease)->handed_tokens(), 0);
}

// A worker may hand off more than it was asked for: decode computes these rows itself.
TEST_F(KvStoreHandedTest, TakeNoBytesOfTheOthers) {
  const absl::StatusOr<KvStore::Write> write = store_->BeginWrite(ReservePart(300), 0, 300, 600);
  ASSERT_TRUE(write.ok());
  EXPECT_TRUE(write->already_covered());
}

TEST_F(KvStoreHandedTest, ShareWithOthersNoMoreThanWhatCame) {
  const LeaseId lease = *store_->Reserve({.prompt_tokens = 800, .total_tokens = 800, .handed_tokens = 600});
  FillAll(lease, 600);
  for (const int64_t handed : {0, 512}) {
    const LeaseId other =
        *store_->Reserve({.prompt_tokens = 800, .total_tokens = 900, .share = {lease, 800}, .handed_tokens = handed});
    EXPECT_EQ(store_->SizeOf(other)->shared_tokens, 512);
    EXPECT_EQ(store_->SizeOf(other)->handed_tokens, 512) << "what is shared is here";
    EXPECT_TRUE(store_->Complete(other).fired());
  }
}

TEST_F(KvStoreHandedTest, AreRefusedWhereThatCannotBe) {
  for (const int64_t handed : {-1, 600, 601}) {
    const absl::Status refused =
        store_->Reserve({.prompt_tokens = 600, .total_tokens = 700, .handed_tokens = handed}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("from 0 to 599"));
  }
}

// The first row that is computed here sees more of what was handed off than the first of the output does.
TEST_F(KvStoreHandedTest, WithWindowsWaitForWhatTheFirstRowOfTheOthersSees) {
  KvStoreOptions options{kLayers, kRowBytes, kBlocks * kKvBlockTokens, 99};
  options.windows = {0, 101, 1};
  store_ = *KvStore::Create(options, device_, clock_);
  const LeaseId lease = ReservePart(300);
  const Event complete = store_->Complete(lease);
  EXPECT_TRUE(Fill(lease, 0, 0, 300).ok());
  EXPECT_TRUE(Fill(lease, 1, 201, 300).ok());
  EXPECT_FALSE(complete.fired());
  EXPECT_TRUE(Fill(lease, 1, 200, 201).ok());
  EXPECT_TRUE(complete.fired()) << "of the last layer it sees itself alone";
  const absl::Status refused =
      store_->Reserve({.prompt_tokens = 600, .total_tokens = 700, .share = {lease, 600}, .handed_tokens = 300})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("takes the whole prompt"));
}

}  // namespace
}  // namespace runahead
