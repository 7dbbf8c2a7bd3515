#include "worker/kv/resident_memory.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/fake_device.h"
#include "worker/kv/block_pool.h"

namespace runahead {
namespace {

constexpr int64_t kLayersHeld = 3, kKvRow = 64, kXRow = 32;
constexpr int64_t kKvBlock = kLayersHeld * kKvBlockTokens * kKvRow, kXBlock = kLayersHeld * kKvBlockTokens * kXRow;

class ResidentMemoryTest : public ::testing::Test {
 protected:
  ResidentMemory Make(int64_t bytes, int64_t x_row = kXRow) {
    return *ResidentMemory::Create(device_, kLayersHeld, kKvRow, x_row, bytes);
  }
  testing::FakeDevice device_;
};

TEST_F(ResidentMemoryTest, KvAndXShareTheMemoryAsEachNeedsIt) {
  ResidentMemory memory = Make(2 * kKvBlock + kXBlock);
  EXPECT_EQ(memory.TakeKv(), 0);
  EXPECT_EQ(memory.TakeKv(), 1);
  EXPECT_EQ(memory.TakeKv(), std::nullopt);
  EXPECT_EQ(memory.TakeX(), 0);
  EXPECT_EQ(memory.TakeX(), std::nullopt);
  EXPECT_EQ(memory.used_bytes(), memory.bytes());
  memory.ReturnKv(1);
  EXPECT_EQ(memory.TakeX(), 1);
  EXPECT_EQ(memory.TakeX(), 2);
  EXPECT_EQ(memory.TakeKv(), std::nullopt);
  memory.ReturnX(0);
  EXPECT_EQ(memory.TakeKv(), std::nullopt) << "two blocks of X are above the hole";
  memory.ReturnX(1);
  memory.ReturnX(2);
  EXPECT_EQ(memory.TakeKv(), 1);
}

TEST_F(ResidentMemoryTest, HasNothingWithoutBytesAndNoXWithoutARow) {
  ResidentMemory none = Make(0);
  EXPECT_EQ(none.TakeKv(), std::nullopt);
  EXPECT_EQ(none.TakeX(), std::nullopt);
  ResidentMemory no_x = Make(10 * kKvBlock, 0);
  EXPECT_EQ(no_x.TakeX(), std::nullopt);
  EXPECT_EQ(no_x.TakeKv(), 0);
}

// Whatever was taken and returned before: no two blocks touch, and a page behind a layer's base is the block's rows.
TEST_F(ResidentMemoryTest, BlocksNeverOverlap) {
  ResidentMemory memory = Make(9 * kKvBlock + 100);
  std::mt19937 random(1);
  std::set<int32_t> kv, x;
  for (int i = 0; i < 2000; ++i) {
    std::set<int32_t>& held = random() % 2 == 0 ? kv : x;
    const bool is_kv = &held == &kv;
    if (random() % 3 == 0 && !held.empty()) {
      auto some = held.begin();
      std::advance(some, random() % held.size());
      is_kv ? memory.ReturnKv(*some) : memory.ReturnX(*some);
      held.erase(some);
      continue;
    }
    const std::optional<int32_t> block = is_kv ? memory.TakeKv() : memory.TakeX();
    if (block.has_value()) {
      EXPECT_TRUE(held.insert(*block).second);
    }
    std::vector<std::pair<size_t, size_t>> ranges;
    for (const int32_t b : kv) {
      for (int64_t layer = 0; layer < kLayersHeld; ++layer) {
        const BufferRef rows = memory.KvRows(layer, b), base = memory.KvLayer(layer);
        EXPECT_EQ(rows.offset, base.offset + static_cast<size_t>(memory.KvPage(b) * kKvBlockTokens * kKvRow));
        EXPECT_LE(rows.offset + rows.size, base.offset + base.size);
        ranges.emplace_back(rows.offset, rows.offset + rows.size);
      }
    }
    for (const int32_t b : x) {
      for (int64_t layer = 0; layer < kLayersHeld; ++layer) {
        const BufferRef rows = memory.XRows(layer, b);
        EXPECT_EQ(rows.size, static_cast<size_t>(kKvBlockTokens * kXRow));
        ranges.emplace_back(rows.offset, rows.offset + rows.size);
      }
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t r = 1; r < ranges.size(); ++r) ASSERT_LE(ranges[r - 1].second, ranges[r].first);
  }
}

}  // namespace
}  // namespace runahead
