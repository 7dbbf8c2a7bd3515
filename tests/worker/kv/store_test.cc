#include "worker/kv/store.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/kv/sequence_rows.h"
#include "tests/worker/kv/store_fixture.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(KvStoreTest, RefusesAStoreOfNoBlocks) {
  EXPECT_EQ(KvStore::Create({kLayers, kRowBytes, kKvBlockTokens - 1, 1}, device_, clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(KvStoreTest, RoundsCapacityDownToBlocks) {
  EXPECT_EQ(store_->stats().capacity_bytes, kBlocks * kKvBlockTokens * kRowBytes * kLayers);
  const absl::StatusOr<KvStore::Write> write = store_->BeginWrite(Reserve(1, 1), 0, 0, 1);
  ASSERT_TRUE(write.ok()) << write.status();
  EXPECT_EQ(static_cast<int64_t>(write->destination()[0].buffer->size()), store_->stats().capacity_bytes)
      << "the rows lie in one block of memory as large as all that is counted";
}

TEST_F(KvStoreTest, ReserveTellsFullFromImpossible) {
  const LeaseId lease = Reserve(1, 7 * kKvBlockTokens);
  EXPECT_THAT(store_->Reserve({.prompt_tokens = 1, .total_tokens = kKvBlockTokens + 1}).status().ToString(),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("256 of 2048 are free")));
  EXPECT_THAT(store_->Reserve({.prompt_tokens = 1, .total_tokens = 8 * kKvBlockTokens + 1}).status().ToString(),
              AllOf(HasSubstr("OUT_OF_RANGE"), HasSubstr("2049"), HasSubstr("2048")));
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 0, .total_tokens = 5}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 6, .total_tokens = 5}).status().code(),
            absl::StatusCode::kInvalidArgument);
  store_->Release(lease);
  Reserve(1, 8 * kKvBlockTokens);
}

TEST_F(KvStoreTest, KvIsLeftOutOnlyOfThePromptAndWhereXComes) {
  EXPECT_THAT(store_->Reserve({.prompt_tokens = 10, .total_tokens = 20, .kv_from = 1}).status().ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("kv_from: 1 is not in [0, 0]")));
  KvStoreOptions options = store_->options();
  options.x_row_bytes = 8;
  store_ = *KvStore::Create(options, device_, clock_);
  for (const int64_t wrong : {-1, 11}) {
    EXPECT_THAT(store_->Reserve({.prompt_tokens = 10, .total_tokens = 20, .with_x = true, .kv_from = wrong})
                    .status()
                    .ToString(),
                AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("is not in [0, 10]")));
  }
  EXPECT_TRUE(store_->Reserve({.prompt_tokens = 10, .total_tokens = 20, .with_x = true, .kv_from = 10}).ok());
}

TEST_F(KvStoreTest, CompleteFiresWhenEveryLayerCoversThePrompt) {
  const LeaseId lease = Reserve(300, 400);
  const Event complete = store_->Complete(lease);
  EXPECT_TRUE(Fill(lease, 0, 0, 300).ok());
  EXPECT_TRUE(Fill(lease, 1, 100, 300).ok());
  EXPECT_TRUE(Fill(lease, 2, 0, 300).ok());
  EXPECT_FALSE(complete.fired());
  EXPECT_EQ(store_->Open(lease).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Fill(lease, 1, 0, 120).ok());
  EXPECT_EQ(complete.status(), absl::OkStatus());
  EXPECT_EQ(store_->Complete(lease).status(), absl::OkStatus());
}

TEST_F(KvStoreTest, AWriteWithoutCommitCoversNothing) {
  const LeaseId lease = Reserve(10, 10);
  FillAll(lease, 9);
  { ASSERT_TRUE(store_->BeginWrite(lease, 0, 0, 10).ok()); }
  EXPECT_TRUE(Fill(lease, 1, 9, 10).ok());
  EXPECT_TRUE(Fill(lease, 2, 9, 10).ok());
  EXPECT_FALSE(store_->Complete(lease).fired());
  EXPECT_TRUE(Fill(lease, 0, 9, 10).ok());
  EXPECT_TRUE(store_->Complete(lease).fired());
}

TEST_F(KvStoreTest, OneLeasesNumberTellsNothingOfTheNext) {
  // 64 random bits: of four of them each half of the bits is 0 in all with a chance of 2^-128.
  uint64_t low = 0, high = 0;
  for (int i = 0; i < 4; ++i) {
    const LeaseId lease = Reserve(1, 2);
    low |= lease.number & 0xffffffff;
    high |= lease.number >> 32;
    store_->Release(lease);
  }
  EXPECT_GT(low, 0xffff);
  EXPECT_GT(high, 0xffff);
  const LeaseId first = Reserve(1, 2), second = Reserve(1, 2);
  EXPECT_GT(first.number > second.number ? first.number - second.number : second.number - first.number, 0xffff);
}

TEST_F(KvStoreTest, BeginWriteChecksLeaseRangeAndOverlap) {
  const LeaseId lease = Reserve(300, 400);
  EXPECT_EQ(store_->BeginWrite({98, lease.number}, 0, 0, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->BeginWrite({99, 1234}, 0, 0, 1).status().code(), absl::StatusCode::kNotFound);
  for (const auto& [layer, begin, end] :
       std::vector<std::tuple<int, int, int>>{{-1, 0, 1}, {3, 0, 1}, {0, -1, 1}, {0, 5, 5}, {0, 6, 5}, {0, 0, 301}}) {
    EXPECT_EQ(store_->BeginWrite(lease, layer, begin, end).status().code(), absl::StatusCode::kOutOfRange);
  }
  absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, 0, 100, 200);
  ASSERT_TRUE(write.ok());
  EXPECT_EQ(store_->BeginWrite(lease, 0, 199, 201).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(store_->BeginWrite(lease, 0, 200, 201).ok());
  EXPECT_TRUE(store_->BeginWrite(lease, 1, 199, 201).ok());
  EXPECT_TRUE(write->Commit().Wait().ok());
  absl::StatusOr<KvStore::Write> again = store_->BeginWrite(lease, 0, 120, 180);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->already_covered());
  EXPECT_TRUE(again->destination().empty());
  EXPECT_TRUE(again->Commit().Wait().ok());
}

TEST_F(KvStoreTest, BytesWrittenAreTheBytesReadInEveryLayer) {
  // Fragments the free list first, so that the lease's blocks do not all follow each other.
  std::vector<LeaseId> small;
  for (int i = 0; i < kBlocks; ++i) small.push_back(Reserve(1, 1));
  for (const int i : {1, 2, 4, 6}) store_->Release(small[i]);
  const int64_t prompt = 900;
  const LeaseId lease = Reserve(prompt, 1000);
  const auto value = [](int64_t layer, int64_t token, int64_t byte) {
    return static_cast<std::byte>((layer * 131 + token * 7 + byte) % 251);
  };
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 700}, {700, prompt}}) {
      absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, layer, begin, end);
      ASSERT_TRUE(write.ok());
      int64_t index = begin * kRowBytes;
      for (const BufferRef& ref : write->destination()) {
        for (size_t i = 0; i < ref.size; ++i, ++index) {
          ref.data()[i] = value(layer, index / kRowBytes, index % kRowBytes);
        }
      }
      EXPECT_EQ(index, end * kRowBytes);
      ASSERT_TRUE(write->Commit().Wait().ok());
    }
  }
  absl::StatusOr<KvStore::Sequence> sequence = store_->Open(lease);
  ASSERT_TRUE(sequence.ok());
  EXPECT_EQ(store_->SizeOf(lease)->prompt_tokens, prompt);
  EXPECT_EQ(store_->SizeOf(lease)->total_tokens, 1000);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(SpansOf(*store_, *sequence, layer).size(), 3u);
    int64_t token = 0;
    for (const KvSpan& span : SpansOf(*store_, *sequence, layer)) {
      ASSERT_EQ(static_cast<int64_t>(span.rows.size), span.tokens * kRowBytes);
      for (int64_t t = 0; t < span.tokens; ++t, ++token) {
        if (token >= prompt) continue;
        const BufferRef row = RowOf(*store_, *sequence, layer, token);
        ASSERT_EQ(static_cast<int64_t>(row.size), kRowBytes);
        ASSERT_EQ(row.data(), span.rows.data() + t * kRowBytes);
        for (int64_t byte = 0; byte < kRowBytes; ++byte) {
          ASSERT_EQ(row.data()[byte], value(layer, token, byte)) << layer << " " << token;
        }
      }
    }
    EXPECT_EQ(token, 4 * kKvBlockTokens);
  }
}

// The first query behind 600 tokens is at position 600: through a window of 101 it sees 500 to 600.
TEST_F(KvStoreTest, CompleteWaitsInEachLayerForWhatItsWindowLeavesToDecode) {
  KvStoreOptions options = store_->options();
  options.windows = {0, 101, 1};
  store_ = *KvStore::Create(options, device_, clock_);
  const LeaseId lease = Reserve(600, 700);
  EXPECT_EQ(store_->stats().kv.expected_bytes, (600 + 100) * kRowBytes);
  EXPECT_TRUE(store_->BeginWrite(lease, 1, 0, 500)->already_covered()) << "nobody waits for it";
  EXPECT_TRUE(store_->BeginWrite(lease, 2, 0, 600)->already_covered());
  ASSERT_TRUE(Fill(lease, 1, 499, 599).ok());
  ASSERT_TRUE(Fill(lease, 0, 0, 600).ok());
  EXPECT_FALSE(store_->Complete(lease).fired());
  EXPECT_FALSE(store_->Open(lease).ok());
  ASSERT_TRUE(Fill(lease, 1, 599, 600).ok());
  EXPECT_TRUE(store_->Complete(lease).fired());
  EXPECT_TRUE(store_->Open(lease).ok());
  EXPECT_EQ(store_->stats().kv.received_bytes, store_->stats().kv.expected_bytes);
}

TEST_F(KvStoreTest, ALeaseOfWhosePromptDecodeSeesNothingIsCompleteAtOnce) {
  KvStoreOptions options = store_->options();
  options.windows = {1, 1, 1};
  store_ = *KvStore::Create(options, device_, clock_);
  EXPECT_TRUE(store_->Complete(Reserve(600, 700)).fired());
  options.windows = {1, 1};
  EXPECT_EQ(KvStore::Create(options, device_, clock_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace runahead
