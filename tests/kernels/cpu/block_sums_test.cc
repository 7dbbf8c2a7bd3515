#include "kernels/cpu/block_sums.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

// Two pieces and a bit.
constexpr size_t kBytes = (size_t{8} << 20) + 129;

std::vector<uint64_t> Sum(const std::vector<std::vector<std::byte>>& blocks, int threads) {
  return SumBlocks({blocks.begin(), blocks.end()}, threads);
}

TEST(BlockSums, EachBlockHasASumOfItsBytesAlone) {
  const std::vector<std::byte> a(100, std::byte{1}), b(kBytes, std::byte{2});
  const std::vector<uint64_t> sums = Sum({a, b, a}, 1);
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_EQ(sums[0], sums[2]);
  EXPECT_NE(sums[0], sums[1]);
  EXPECT_EQ(Sum({b}, 1), std::vector<uint64_t>{sums[1]});
  EXPECT_EQ(Sum({a, b, a}, 4), sums) << "whatever threads read";
  EXPECT_TRUE(Sum({}, 2).empty());
}

TEST(BlockSums, AFlippedByteIsAnotherSumWhereverItLies) {
  std::vector<std::byte> block(kBytes);
  for (size_t i = 0; i < kBytes; ++i) block[i] = static_cast<std::byte>(i * 31 >> 3);
  const std::vector<uint64_t> whole = Sum({block}, 2);
  for (const size_t at : {size_t{0}, size_t{1000}, (size_t{4} << 20) - 1, size_t{4} << 20, kBytes - 129, kBytes - 1}) {
    block[at] ^= std::byte{1};
    EXPECT_NE(Sum({block}, 2), whole) << at;
    block[at] ^= std::byte{1};
  }
  EXPECT_EQ(Sum({block}, 2), whole);
}

}  // namespace
}  // namespace runahead
