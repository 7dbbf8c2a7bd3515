#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/gpu_memory.h"

namespace runahead {
namespace {

std::vector<unsigned char> RandomBytes(size_t size) {
  std::mt19937 random(static_cast<uint32_t>(size));
  std::vector<unsigned char> bytes(size);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

// Of bytes that lie `offset` behind what is aligned.
uint64_t SumOf(const std::vector<unsigned char>& bytes, size_t offset = 0) {
  std::vector<unsigned char> placed(offset, 0xee);
  placed.insert(placed.end(), bytes.begin(), bytes.end());
  placed.push_back(0xee);
  GpuMemory memory(placed.size());
  memory.Write(placed.data());
  std::vector<uint64_t> partials(kSumPartials, 0xeeee);
  GpuMemory sums(partials.size() * sizeof(uint64_t));
  EXPECT_EQ(LaunchSum(memory.data() + offset, bytes.size(), reinterpret_cast<uint64_t*>(sums.data()), nullptr),
            cudaSuccess);
  sums.Read(partials.data());
  return std::accumulate(partials.begin(), partials.end(), uint64_t{0});
}

class SumKernel : public GpuTest {};

constexpr size_t kSizes[] = {1, 7, 8, 9, 64, 129, 4096, 200'003};

TEST_F(SumKernel, IsTheSameWhereverTheBytesLie) {
  for (const size_t size : kSizes) {
    const std::vector<unsigned char> bytes = RandomBytes(size);
    const uint64_t sum = SumOf(bytes);
    for (const size_t offset : {1, 3, 8, 12}) EXPECT_EQ(SumOf(bytes, offset), sum) << size << " " << offset;
  }
}

TEST_F(SumKernel, AnyFlippedBitChangesIt) {
  for (const size_t size : kSizes) {
    std::vector<unsigned char> bytes = RandomBytes(size);
    const uint64_t sum = SumOf(bytes);
    const size_t bits = size * 8, step = std::max<size_t>(1, bits / 13);
    for (size_t bit = 0; bit < bits; bit += step) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
      EXPECT_NE(SumOf(bytes), sum) << size << " " << bit;
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    }
  }
}

TEST_F(SumKernel, OrderAndLengthCount) {
  std::vector<unsigned char> bytes = RandomBytes(4096), swapped = bytes;
  std::swap_ranges(swapped.begin(), swapped.begin() + 8, swapped.begin() + 2048);
  EXPECT_NE(SumOf(swapped), SumOf(bytes));
  std::vector<unsigned char> zeros(64, 0);
  const uint64_t sum = SumOf(zeros);
  zeros.pop_back();
  EXPECT_NE(SumOf(zeros), sum);
}

}  // namespace
}  // namespace runahead
