#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/gpu_memory.h"
#include "tests/testing/reference_kv_quant.h"

namespace runahead {
namespace {

using QuantizeKvTest = GpuTest;

// Bytes of the quantised rows, which nothing behind them may be written to.
std::vector<uint8_t> Quantize(const GpuMatrix& rows, const KvQuant& quant, const GpuMemory& out, size_t bytes) {
  std::vector<uint8_t> all(bytes + 64);
  EXPECT_EQ(LaunchQuantizeKv(rows.matrix(), quant, out.data(), nullptr), cudaSuccess);
  out.Read(all.data());
  EXPECT_EQ(std::vector<uint8_t>(all.begin() + bytes, all.end()), std::vector<uint8_t>(64, 0xff));
  all.resize(bytes);
  return all;
}

// x[rows, cols] by the kernels and by the reference: the bytes, and what they read back as.
void ExpectReference(const GpuMatrix& x, const KvQuant& quant, const Placement& placement) {
  std::vector<std::byte> wanted;
  std::vector<float> values;
  for (int64_t r = 0; r < x.rows(); ++r) {
    for (int64_t c = 0; c < x.cols(); c += quant.group) {
      std::vector<float> group;
      for (int64_t i = 0; i < quant.group; ++i) group.push_back(x.at(r, c + i));
      const ReferenceGroup reference = QuantizeReference(group.data(), quant);
      wanted.insert(wanted.end(), reference.bytes.begin(), reference.bytes.end());
      values.insert(values.end(), reference.values.begin(), reference.values.end());
    }
  }
  GpuMemory memory(wanted.size() + 64);
  memory.Write(std::vector<uint8_t>(wanted.size() + 64, 0xff).data());
  const std::vector<uint8_t> got = Quantize(x, quant, memory, wanted.size());
  ASSERT_EQ(std::memcmp(got.data(), wanted.data(), wanted.size()), 0);
  for (const DType dtype : kAllDTypes) {
    GpuMatrix back(dtype, x.rows(), x.cols(), placement.gap, placement.offset);
    ASSERT_EQ(LaunchDequantizeKv(memory.data(), quant, back.matrix(), nullptr), cudaSuccess);
    back.Download();
    for (int64_t i = 0; i < x.rows() * x.cols(); ++i) {
      const float value = back.at(i / x.cols(), i % x.cols());
      ASSERT_TRUE(std::isnan(values[i]) ? std::isnan(value) : value == Rounded(dtype, values[i])) << i;
    }
  }
}

TEST_F(QuantizeKvTest, BitwiseTheReference) {
  for (const int bits : {4, 8}) {
    for (const int group : {32, 64, 128}) {
      for (const DType dtype : kAllDTypes) {
        for (const int64_t groups : {1, 3, 7}) {
          for (const Placement& placement : kPlacements) {
            SCOPED_TRACE(std::string(DTypeName(dtype)) + ", " + std::to_string(groups) + " groups of " +
                         std::to_string(group) + ", " + std::to_string(bits) + " bits, offset " +
                         std::to_string(placement.offset));
            GpuMatrix x(dtype, 5, groups * group, placement.gap, placement.offset);
            x.UploadRandom(static_cast<uint32_t>(bits + group + groups), 2.0f);
            x.Upload([&](int64_t r, int64_t c) {
              const float value = x.at(r, c);
              return r == 0 ? 0.0f : r == 1 ? -0.3f : r == 2 ? value * 30000 : r == 3 ? value * 1e-6f : value + 3;
            });
            ExpectReference(x, {bits, group}, placement);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(QuantizeKvTest, SymmetricallyItIsBitwiseTheReferenceToo) {
  for (const int bits : {8, 16}) {
    for (const DType dtype : kAllDTypes) {
      for (const int64_t groups : {1, 3, 7}) {
        for (const Placement& placement : kPlacements) {
          SCOPED_TRACE(std::string(DTypeName(dtype)) + ", " + std::to_string(groups) + " groups, " +
                       std::to_string(bits) + " bits, offset " + std::to_string(placement.offset));
          GpuMatrix x(dtype, 5, groups * 32, placement.gap, placement.offset);
          x.UploadRandom(static_cast<uint32_t>(bits + groups), 2.0f);
          x.Upload([&](int64_t r, int64_t c) {
            const float value = x.at(r, c);
            return r == 0 ? 0.0f : r == 1 ? -0.3f : r == 2 ? value * 30000 : r == 3 ? value * 1e-6f : value + 3;
          });
          ExpectReference(x, {bits, 32, /*symmetric=*/true}, placement);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(QuantizeKvTest, WhatIsNotFiniteReadsBackAsNanAndWhatIsTooLargeSaturates) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  GpuMatrix x(DType::kF32, 1, 6 * 32);
  x.UploadRandom(1);
  x.set(0, 3, std::numeric_limits<float>::quiet_NaN());
  x.set(0, 32 + 31, kInfinity);
  x.set(0, 64, -kInfinity);
  x.set(0, 96, 1e30f);
  x.set(0, 97, -1e30f);
  for (int c = 128; c < 160; ++c) x.set(0, c, -1e30f);
  x.Upload();
  for (const int bits : {4, 8}) ExpectReference(x, {bits, 32}, {0, 0});
}

}  // namespace
}  // namespace runahead
