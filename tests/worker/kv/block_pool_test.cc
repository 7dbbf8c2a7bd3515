#include "worker/kv/block_pool.h"

#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_device.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kPoolRow = 8;
constexpr int64_t kPoolBlock = kKvBlockTokens * kPoolRow;  // bytes

// Says which kind of memory it was asked for.
class KindDevice final : public testing::FakeDevice {
 public:
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override {
    last = kind;
    return FakeDevice::Allocate(bytes, kind);
  }
  MemoryKind last = MemoryKind::kHost;
};

class BlockPoolTest : public ::testing::Test {
 protected:
  KindDevice device_;
  BlockPool pool_{*KvArena::Create(device_, MemoryKind::kDevice, /*layers=*/2, /*blocks=*/8, kPoolRow)};
};

TEST_F(BlockPoolTest, TakesTheFirstRunThatHoldsAll) {
  EXPECT_THAT(*pool_.Take(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(*pool_.Take(2), ElementsAre(3, 4));
  pool_.Return({1});
  EXPECT_THAT(*pool_.Take(2), ElementsAre(5, 6)) << "block 1 alone is too short";
  EXPECT_THAT(*pool_.Take(1), ElementsAre(1));
  EXPECT_THAT(*pool_.Take(0), IsEmpty());
}

TEST_F(BlockPoolTest, TakesTheLowestWhereNoRunHoldsAll) {
  ASSERT_TRUE(pool_.Take(8).ok());
  pool_.Return({6, 1, 3});
  EXPECT_THAT(*pool_.Take(2), ElementsAre(1, 3));
}

TEST_F(BlockPoolTest, IsFullWhenFewerAreFreeAndTakesNone) {
  ASSERT_TRUE(pool_.Take(7).ok());
  const absl::Status full = pool_.Take(2).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.ToString(), HasSubstr("256 of 2048 are free"));
  EXPECT_EQ(pool_.free(), 1);
  EXPECT_THAT(*pool_.Take(1), ElementsAre(7));
}

TEST_F(BlockPoolTest, ABlockIsUsedOnceHoweverManyShareItAndFreeWithTheLastReference) {
  const std::vector<int32_t> blocks = *pool_.Take(2);
  pool_.Share(blocks);
  pool_.Share({blocks[0]});
  EXPECT_EQ(pool_.used(), 2);
  pool_.Return(blocks);
  EXPECT_EQ(pool_.used(), 2);
  pool_.Return(blocks);
  EXPECT_EQ(pool_.used(), 1);
  EXPECT_THAT(*pool_.Take(1), ElementsAre(1)) << "block 0 is needed still";
  pool_.Return({0});
  EXPECT_EQ(pool_.used(), 1);
}

TEST_F(BlockPoolTest, AKeptBlockIsFreeButNotTaken) {
  const std::vector<int32_t> taken = *pool_.Take(3);
  pool_.Keep(taken[1]);
  pool_.Keep(taken[1]);
  EXPECT_EQ(pool_.kept(), 0) << "it is in use";
  pool_.Return(taken);
  EXPECT_EQ(pool_.free(), 8);
  EXPECT_EQ(pool_.kept(), 1);
  EXPECT_EQ(pool_.blank(), 7);
  EXPECT_FALSE(pool_.Take(8).ok());
  const std::vector<int32_t> others = *pool_.Take(7);
  EXPECT_THAT(others, ::testing::Not(::testing::Contains(taken[1])));
  pool_.Forget(taken[1]);
  EXPECT_EQ(pool_.blank(), 0) << "it is kept once more";
  pool_.Forget(taken[1]);
  EXPECT_THAT(*pool_.Take(1), ElementsAre(taken[1]));
}

TEST_F(BlockPoolTest, AKeptBlockThatIsSharedIsInUse) {
  const std::vector<int32_t> taken = *pool_.Take(1);
  pool_.Keep(taken[0]);
  pool_.Return(taken);
  pool_.Share(taken);
  EXPECT_EQ(pool_.used(), 1);
  EXPECT_EQ(pool_.kept(), 0);
  pool_.Forget(taken[0]);
  EXPECT_EQ(pool_.used(), 1);
  pool_.Return(taken);
  EXPECT_EQ(pool_.blank(), 8);
}

TEST_F(BlockPoolTest, AllocatesAllOfItsTier) {
  EXPECT_EQ(device_.last, MemoryKind::kDevice);
  EXPECT_EQ(pool_.arena().blocks(), 8);
  EXPECT_EQ(pool_.arena().block_bytes(), 2 * kPoolBlock);
  EXPECT_EQ(pool_.arena().Layer(0).buffer->size(), static_cast<size_t>(8 * 2 * kPoolBlock));
}

TEST_F(BlockPoolTest, ABlockIsItsNumberInEveryLayer) {
  const KvArena arena = pool_.arena();
  for (int64_t layer = 0; layer < 2; ++layer) {
    const BufferRef base = arena.Layer(layer);
    EXPECT_EQ(base.offset, static_cast<size_t>(layer * 8 * kPoolBlock));
    EXPECT_EQ(base.size, static_cast<size_t>(8 * kPoolBlock));
    const std::vector<int32_t> blocks = {5, 2};
    const std::vector<KvSpan> row = arena.Spans(blocks, layer, kKvBlockTokens + 3, kKvBlockTokens + 4);
    ASSERT_EQ(row.size(), 1u);
    EXPECT_EQ(row[0].rows.data(), base.data() + 2 * kPoolBlock + 3 * kPoolRow);
    EXPECT_EQ(row[0].rows.size, static_cast<size_t>(kPoolRow));
    EXPECT_EQ(row[0].tokens, 1);
  }
}

TEST_F(BlockPoolTest, SpansAreJoinedWhereBlocksTouch) {
  const KvArena arena = pool_.arena();
  const std::vector<int32_t> blocks = {1, 2, 5, 0};
  std::vector<int64_t> tokens, offsets;
  for (const KvSpan& span : arena.Spans(blocks, 0, 10, 4 * kKvBlockTokens - 1)) {
    tokens.push_back(span.tokens);
    offsets.push_back(static_cast<int64_t>(span.rows.offset));
    EXPECT_EQ(static_cast<int64_t>(span.rows.size), span.tokens * kPoolRow);
  }
  EXPECT_THAT(tokens, ElementsAre(2 * kKvBlockTokens - 10, kKvBlockTokens, kKvBlockTokens - 1));
  EXPECT_THAT(offsets, ElementsAre(kPoolBlock + 10 * kPoolRow, 5 * kPoolBlock, 0));
}

}  // namespace
}  // namespace runahead
