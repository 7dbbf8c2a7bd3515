#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/superblock.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/gpu_memory.h"
#include "worker/format/dequantize.h"

namespace runahead {
namespace {

// Any bytes are a block of the Q types; their scales are kept finite.
std::vector<uint8_t> RandomRows(WeightType type, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(rows * WeightRowBytes(type, cols));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 24);
  if (IsPlain(type)) return bytes;
  for (size_t block = 0; block < bytes.size(); block += BlockOf(type).bytes) {
    if (IsSuperblock(type)) {
      bytes[block + SuperblockDAt(type) + 1] &= 0xbf;
      if (SuperblockHasMin(type)) bytes[block + SuperblockMinAt(type) + 1] &= 0xbf;
      continue;
    }
    bytes[block + 1] &= 0xbf;
    if (BlockOf(type).scales == 2) bytes[block + 3] &= 0xbf;
  }
  return bytes;
}

// Every element is bitwise what the CPU makes of it, rounded once.
void ExpectRows(WeightType type, const std::vector<uint8_t>& rows, size_t stored_offset, GpuMatrix& out) {
  std::vector<uint8_t> stored(stored_offset, 0xff);
  stored.insert(stored.end(), rows.begin(), rows.end());
  const GpuArray<uint8_t> memory(stored);
  const auto* from = reinterpret_cast<const std::byte*>(memory.data()) + stored_offset;
  ASSERT_EQ(LaunchDequantize(type, from, out.matrix(), nullptr), cudaSuccess);
  out.Download();
  std::vector<float> want(out.cols());
  for (int64_t r = 0; r < out.rows(); ++r) {
    const auto* row = reinterpret_cast<const std::byte*>(rows.data()) + r * WeightRowBytes(type, out.cols());
    DequantizeRow(type, row, out.cols(), want.data());
    for (int64_t c = 0; c < out.cols(); ++c) {
      if (std::isnan(want[c])) {
        ASSERT_TRUE(std::isnan(out.at(r, c))) << r << " " << c;
      } else {
        ASSERT_EQ(out.bits(r, c), ElementBits(out.dtype(), want[c])) << r << " " << c << ": " << want[c];
      }
    }
  }
}

using DequantizeKernelTest = GpuTest;

TEST_F(DequantizeKernelTest, BitwiseTheCpusValues) {
  for (const WeightBlock& block : kWeightBlocks) {
    for (const int64_t cols : {32, 96, 256, 768, 2080}) {
      if (cols % block.elements != 0) continue;
      const std::vector<uint8_t> rows = RandomRows(block.type, 3, cols, 1);
      for (const DType dtype : kAllDTypes) {
        for (const Placement& placement : kPlacements) {
          for (const size_t offset : {0, 1, 2, 4, 8}) {
            SCOPED_TRACE(testing::Message() << block.name << ", " << cols << " columns, offset " << offset
                                            << ", out offset " << placement.offset);
            GpuMatrix out(dtype, 3, cols, placement.gap, placement.offset);
            ExpectRows(block.type, rows, offset, out);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(DequantizeKernelTest, PlainRowsOfAnyLength) {
  for (const WeightBlock& block : kWeightBlocks) {
    if (!IsPlain(block.type)) continue;
    for (const int64_t cols : {1, 3, 7, 129, 257}) {
      const std::vector<uint8_t> rows = RandomRows(block.type, 300, cols, 2);
      for (const DType dtype : kAllDTypes) {
        SCOPED_TRACE(testing::Message() << block.name << ", " << cols << " columns");
        GpuMatrix out(dtype, 300, cols, 3);
        ExpectRows(block.type, rows, 0, out);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(DequantizeKernelTest, EveryHalf) {
  std::vector<uint8_t> halves(2 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint8_t>(i % 2 == 0 ? i / 2 : i / 2 >> 8);
  GpuMatrix out(DType::kF32, 1, 1 << 16);
  ExpectRows(WeightType::kF16, halves, 0, out);
  ExpectRows(WeightType::kBF16, halves, 0, out);
}

}  // namespace
}  // namespace runahead
