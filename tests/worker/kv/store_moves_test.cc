// Leases of sequences that run elsewhere, whose KV comes from there, and rows that are lent while they are decoded.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/kv/store_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

class KvStoreMovesTest : public KvStoreTest {
 protected:
  // Of a prompt of 300 tokens and an output of 300, of which KV of 500 comes at most.
  LeaseId ReserveToTake() {
    const absl::StatusOr<LeaseId> lease =
        store_->Reserve({.prompt_tokens = 300, .total_tokens = 600, .arriving_tokens = 500, .expected_tokens = 600});
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.value_or(LeaseId{});
  }
};

TEST_F(KvStoreMovesTest, TakeRowsBehindThePromptAndAreCompleteWithThoseThatTheyAreToldOf) {
  const LeaseId lease = ReserveToTake();
  FillAll(lease, 300);
  const Event complete = store_->Complete(lease);
  EXPECT_FALSE(complete.fired()) << "nobody has said that this is all";
  for (int64_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(Fill(lease, layer, 300, 410).ok());
  EXPECT_EQ(store_->stats().kv.received_bytes, 0) << "it is no hand-off, of which all was expected";
  EXPECT_EQ(store_->stats().kv.expected_bytes, 0);
  EXPECT_EQ(store_->EndArrival(lease, 410), absl::OkStatus());
  EXPECT_TRUE(complete.fired());
  const KvStore::Sequence sequence = *store_->Open(lease);
  EXPECT_EQ(sequence.prompt_tokens(), 300);
  EXPECT_EQ(sequence.handed_tokens(), 410);
  EXPECT_GE(sequence.blocks().size(), 2u);
}

TEST_F(KvStoreMovesTest, WaitForWhatIsMissing) {
  const LeaseId lease = ReserveToTake();
  for (int64_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(Fill(lease, layer, 0, layer == 1 ? 399 : 400).ok());
  EXPECT_EQ(store_->EndArrival(lease, 400), absl::OkStatus());
  const Event complete = store_->Complete(lease);
  EXPECT_FALSE(complete.fired());
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Open(lease).status()));
  EXPECT_TRUE(Fill(lease, 1, 399, 400).ok());
  EXPECT_TRUE(complete.fired());
}

TEST_F(KvStoreMovesTest, HaveMemoryForAllThatMayComeFromTheBeginning) {
  const int64_t before = store_->stats().used_bytes;
  ReserveToTake();
  const int64_t blocks = KvBlocksFor(500 + kFirstPortion);
  EXPECT_EQ(store_->stats().used_bytes - before, blocks * kKvBlockTokens * kLayers * kRowBytes);
}

TEST_F(KvStoreMovesTest, TheEndIsSaidOnceOfSuchLeasesAndInTheirBounds) {
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->EndArrival(Reserve(300, 600), 300)));
  EXPECT_TRUE(absl::IsNotFound(store_->EndArrival(LeaseId{}, 300)));
  const LeaseId lease = ReserveToTake();
  for (const int64_t tokens : {299, 501}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(store_->EndArrival(lease, tokens))) << tokens;
  }
  {
    const absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, 0, 0, 10);
    ASSERT_TRUE(write.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(store_->EndArrival(lease, 300))) << "bytes are under way";
  }
  EXPECT_EQ(store_->EndArrival(lease, 300), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->EndArrival(lease, 300)));
  EXPECT_TRUE(absl::IsOutOfRange(Fill(lease, 0, 300, 501)));
}

TEST_F(KvStoreMovesTest, AreRefusedWhereThatCannotBe) {
  for (const int64_t arriving : {299, 601}) {
    const absl::Status refused =
        store_->Reserve({.prompt_tokens = 300, .total_tokens = 600, .arriving_tokens = arriving}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("from 300 to 600"));
  }
  const absl::Status part =
      store_->Reserve({.prompt_tokens = 300, .total_tokens = 600, .handed_tokens = 10, .arriving_tokens = 400})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(part)) << part;
}

TEST_F(KvStoreMovesTest, WithWindowsNeedNoMoreThanTheSequenceHadWhereItRan) {
  KvStoreOptions options{kLayers, kRowBytes, kBlocks * kKvBlockTokens, 99};
  options.windows = {0, 101, 1};
  store_ = *KvStore::Create(options, device_, clock_);
  const LeaseId lease = ReserveToTake();
  EXPECT_TRUE(Fill(lease, 0, 0, 400).ok());
  EXPECT_TRUE(Fill(lease, 1, 200, 400).ok()) << "what the first token behind the prompt sees";
  EXPECT_TRUE(Fill(lease, 2, 300, 400).ok());
  EXPECT_EQ(store_->EndArrival(lease, 400), absl::OkStatus());
  EXPECT_TRUE(store_->Complete(lease).fired());
}

TEST_F(KvStoreMovesTest, LentRowsLieWhereTheSequencesDoInWholeAndInPart) {
  const LeaseId lease = Reserve(700, 800);
  FillAll(lease, 700);
  const KvStore::Sequence sequence = *store_->Open(lease);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 700}, {250, 260}, {300, 301}, {512, 700}}) {
    const KvStore::Lent lent = sequence.Lend(begin, end);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<KvSpan> own = store_->arena().Spans(sequence.blocks(), layer, begin, end);
      const std::vector<KvSpan> spans = lent.Spans(layer, begin);
      ASSERT_EQ(spans.size(), own.size());
      for (size_t i = 0; i < spans.size(); ++i) {
        EXPECT_EQ(spans[i].rows.data(), own[i].rows.data());
        EXPECT_EQ(spans[i].tokens, own[i].tokens);
      }
      EXPECT_EQ(lent.Spans(layer, end - 1).at(0).tokens, 1);
    }
  }
}

TEST_F(KvStoreMovesTest, LentRowsAreNobodyElsesUntilTheyAreGivenBack) {
  int freed = 0;
  const LeaseId lease = Reserve(300, 300);
  FillAll(lease, 300);
  std::optional<KvStore::Lent> lent;
  {
    const KvStore::Sequence sequence = *store_->Open(lease);
    lent = sequence.Lend(0, 200);
  }
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_EQ(store_->stats().used_bytes, kKvBlockTokens * kLayers * kRowBytes) << "the block that is lent";
  store_->OnFreed([&freed] { ++freed; });
  lent.reset();
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(freed, 1);
  store_->OnFreed(nullptr);
}

}  // namespace
}  // namespace runahead
