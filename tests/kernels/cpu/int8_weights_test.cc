#include "kernels/cpu/int8/int8_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_isa.h"
#include "tests/kernels/cpu/random_weights.h"

namespace runahead {

const Int8Kernels& EmulatedAvxVnniInt8Kernels();  // int8_emulated_vnni.cc

namespace {

// Those of this machine, and what can be emulated.
std::vector<const Int8Kernels*> KernelsHere() {
  std::vector<const Int8Kernels*> kernels = {&Avx2Int8Kernels(), &EmulatedAvxVnniInt8Kernels()};
  const CpuVnni vnni = DetectCpuVnni();
  if (vnni.avx) kernels.push_back(&AvxVnniInt8Kernels());
  if (vnni.avx512) kernels.push_back(&Avx512VnniInt8Kernels());
  return kernels;
}

struct LoadedInt8 {
  explicit LoadedInt8(const WeightSource& source, int threads = 1) : pool(threads), arena(HostChunks(nullptr)) {
    weights = *Int8Weights::Make(source, arena, pool);
  }
  std::vector<float> Multiply(const Int8Kernels& kernels, Int8Product args) {
    std::vector<float> out(args.m * args.cols);
    args.out = out.data();
    args.out_stride = args.cols;
    weights->Multiply(KernelsFor(false), kernels, pool, args);
    return out;
  }
  ThreadPool pool;
  Arena arena;
  std::optional<Int8Weights> weights;
};

// A block of activations as product.h says, one element after the other.
struct ScalarBlock {
  explicit ScalarBlock(const float* x) {
    float largest = 0;
    for (int i = 0; i < kInt8Block; ++i) largest = std::max(largest, std::abs(x[i]));
    if (largest < 0x1p-100f) return;
    scale = largest / 127.0f;
    for (int i = 0; i < kInt8Block; ++i) q[i] = static_cast<int>(std::nearbyint(x[i] * (127.0f / largest)));
    for (int value : q) sum += value;
  }
  float scale = 0;
  int sum = 0;
  int q[kInt8Block] = {};
};

// u and the scales of column `col` of a row, from the exact values of the test's own reader.
struct ScalarWeights {
  ScalarWeights(const RandomWeights& weights, int64_t row, int64_t block) {
    const std::byte* at =
        weights.bytes.data() + row * WeightRowBytes(weights.type, weights.cols) + block * BlockOf(weights.type).bytes;
    uint16_t halves[2];
    std::memcpy(halves, at, sizeof(halves));
    d = static_cast<float>(HalfToDouble(halves[0]));
    m = weights.HasMinimum() ? static_cast<float>(HalfToDouble(halves[1])) : 0.0f;
    for (int i = 0; i < kInt8Block; ++i) {
      // Integers: exact, whatever d is but zero.
      level[i] = d == 0 ? 0 : static_cast<int>(std::lround((weights.Value(row, block * kInt8Block + i) - m) / d));
    }
  }
  float d, m;
  int level[kInt8Block];  // u, less the offset
};

float ScalarProduct(const RandomWeights& weights, int64_t row, const float* x) {
  float y = 0;
  for (int64_t b = 0; b < weights.cols / kInt8Block; ++b) {
    const ScalarBlock block(x + b * kInt8Block);
    const ScalarWeights w(weights, row, b);
    int sum = 0;
    for (int i = 0; i < kInt8Block; ++i) sum += w.level[i] * block.q[i];
    y = std::fma(w.d * block.scale, static_cast<float>(sum), y);
    if (weights.HasMinimum()) y = std::fma(w.m, block.scale * static_cast<float>(block.sum), y);
  }
  return y;
}

class Int8WeightsTest : public testing::TestWithParam<WeightType> {};

TEST_P(Int8WeightsTest, RowsComeBackAsTheNearestFloat) {
  for (int64_t rows : {1, 16, 37}) {
    const RandomWeights source(GetParam(), rows, 96, 1);
    LoadedInt8 loaded(source.Source());
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<float> out(97, 42.0f);
      loaded.weights->DequantizeRow(row, out.data());
      for (int64_t c = 0; c < 96; ++c) ASSERT_EQ(out[c], static_cast<float>(source.Value(row, c))) << row << " " << c;
      EXPECT_EQ(out[96], 42.0f);  // nothing beyond the row is written
    }
  }
}

TEST_P(Int8WeightsTest, ProductsAreBitwiseThoseOfTheScalarFormula) {
  for (int64_t cols : {32, 96, 1088}) {
    for (int64_t rows : {1, 16, 33}) {
      for (int64_t m : {1, 3, 64, 67}) {
        const RandomWeights source(GetParam(), rows, cols, 2);
        LoadedInt8 loaded(source.Source(), 2);
        const std::vector<float> x = RandomFloats(m * cols, 3);
        for (const Int8Kernels* kernels : KernelsHere()) {
          const std::vector<float> out =
              loaded.Multiply(*kernels, {.x = x.data(), .x_stride = cols, .m = m, .cols = rows});
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t n = 0; n < rows; ++n) {
              ASSERT_EQ(out[i * rows + n], ScalarProduct(source, n, x.data() + i * cols))
                  << kernels->name << " row " << i << " of " << m << ", column " << n << " of " << rows;
            }
          }
        }
      }
    }
  }
}

TEST_P(Int8WeightsTest, TheLargestWeightsAndActivationsDoNotSaturate) {
  constexpr int64_t kCols = 64, kRows = 18;
  RandomWeights source(GetParam(), kRows, kCols, 4);
  const WeightBlock& block = BlockOf(GetParam());
  for (uint8_t fill : {0x00, 0x7f, 0x80, 0xff}) {
    for (size_t at = 0; at < source.bytes.size(); at += block.bytes) {
      std::memset(source.bytes.data() + at + block.scale_bytes(), fill, block.bytes - block.scale_bytes());
    }
    LoadedInt8 loaded(source.Source());
    for (float sign : {1.0f, -1.0f}) {
      const std::vector<float> x(kCols, 3.25f * sign);
      for (const Int8Kernels* kernels : KernelsHere()) {
        const std::vector<float> out =
            loaded.Multiply(*kernels, {.x = x.data(), .x_stride = kCols, .m = 1, .cols = kRows});
        for (int64_t n = 0; n < kRows; ++n) {
          ASSERT_EQ(out[n], ScalarProduct(source, n, x.data())) << kernels->name << " " << n << " fill " << int{fill};
        }
      }
    }
  }
}

TEST_P(Int8WeightsTest, ARowIsBitwiseTheSameInAnyBatchInAnyRangeAndOnAnyThreads) {
  constexpr int64_t kCols = 320, kRows = 203, kMost = 70;
  const RandomWeights source(GetParam(), kRows, kCols, 5);
  const std::vector<float> x = RandomFloats(kMost * kCols, 6);
  LoadedInt8 loaded(source.Source(), 3), alone(source.Source());
  for (const Int8Kernels* kernels : KernelsHere()) {
    const std::vector<float> all =
        loaded.Multiply(*kernels, {.x = x.data(), .x_stride = kCols, .m = kMost, .cols = kRows});
    for (int64_t i = 0; i < kMost; i += 23) {
      const std::vector<float> part = alone.Multiply(
          *kernels, {.x = x.data() + i * kCols, .x_stride = kCols, .m = 1, .first_row = 5, .cols = kRows - 9});
      for (int64_t n = 0; n < kRows - 9; ++n) ASSERT_EQ(part[n], all[i * kRows + 5 + n]) << kernels->name << " " << n;
    }
  }
}

TEST_P(Int8WeightsTest, AreAsLargeAsInTheFileWhereRowsFillGroups) {
  const RandomWeights source(GetParam(), 64, 1024, 15);
  EXPECT_EQ(LoadedInt8(source.Source()).weights->memory().size, source.bytes.size());
}

INSTANTIATE_TEST_SUITE_P(Types, Int8WeightsTest,
                         testing::Values(WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1,
                                         WeightType::kQ8_0),
                         [](const auto& test) { return std::string(BlockOf(test.param).name); });

TEST(Int8Weights, RunsOfSeveralTypesAreOneMatrix) {
  constexpr int64_t kCols = 64;
  const RandomWeights a(WeightType::kQ4_1, 21, kCols, 7), b(WeightType::kQ8_0, 5, kCols, 8);
  WeightSource source = a.Source();
  source.runs.push_back(b.Source().runs[0]);
  LoadedInt8 loaded(source);
  const std::vector<float> x = RandomFloats(2 * kCols, 9);
  const std::vector<float> out =
      loaded.Multiply(Avx2Int8Kernels(), {.x = x.data(), .x_stride = kCols, .m = 2, .first_row = 3, .cols = 21});
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t n = 0; n < 21; ++n) {
      const float wanted = n + 3 < 21 ? ScalarProduct(a, n + 3, x.data() + i * kCols)
                                      : ScalarProduct(b, n + 3 - 21, x.data() + i * kCols);
      EXPECT_EQ(out[i * 21 + n], wanted) << i << " " << n;
    }
  }
}

TEST(Int8Weights, AccumulatesAddsABiasAndActivates) {
  constexpr int64_t kCols = 32, kRows = 19;
  const RandomWeights source(WeightType::kQ4_1, kRows, kCols, 10);
  LoadedInt8 loaded(source.Source());
  const std::vector<float> x = RandomFloats(kCols, 11), bias = RandomFloats(kRows, 12);
  std::vector<float> sums(kRows, 2.0f), finished(kRows);
  Int8Product args = {.x = x.data(), .x_stride = kCols, .m = 1, .out_stride = kRows, .cols = kRows};
  args.out = sums.data();
  args.accumulate = true;
  loaded.weights->Multiply(KernelsFor(false), Avx2Int8Kernels(), loaded.pool, args);
  args.out = finished.data();
  args.accumulate = false;
  args.bias = bias.data();
  args.activation = Activation::kRelu;
  loaded.weights->Multiply(KernelsFor(false), Avx2Int8Kernels(), loaded.pool, args);
  for (int64_t n = 0; n < kRows; ++n) {
    const float product = ScalarProduct(source, n, x.data());
    EXPECT_EQ(sums[n], 2.0f + product);
    EXPECT_EQ(finished[n], std::max(0.0f, product + bias[n]));
  }
}

TEST(Int8Weights, WhatIsNotFiniteStaysSo) {
  constexpr int64_t kCols = 64;
  const RandomWeights source(WeightType::kQ4_0, 3, kCols, 13);
  LoadedInt8 loaded(source.Source());
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(kCols, 1.0f);
    x[40] = bad;
    const std::vector<float> out =
        loaded.Multiply(Avx2Int8Kernels(), {.x = x.data(), .x_stride = kCols, .m = 1, .cols = 3});
    for (float value : out) EXPECT_FALSE(std::isfinite(value));
  }
}

TEST(Int8Weights, TinyActivationsAreZeros) {
  constexpr int64_t kCols = 32;
  const RandomWeights source(WeightType::kQ5_1, 3, kCols, 14);
  LoadedInt8 loaded(source.Source());
  const std::vector<float> x(kCols, 1e-40f);
  for (float value : loaded.Multiply(Avx2Int8Kernels(), {.x = x.data(), .x_stride = kCols, .m = 1, .cols = 3})) {
    EXPECT_EQ(value, 0.0f);
  }
}

TEST(Int8Weights, TakesQuantisedTypesOnly) {
  const RandomWeights quantised(WeightType::kQ8_0, 2, 32, 1), plain(WeightType::kF16, 2, 32, 1);
  EXPECT_TRUE(Int8Weights::Takes(quantised.Source()));
  WeightSource mixed = quantised.Source();
  mixed.runs.push_back(plain.Source().runs[0]);
  EXPECT_FALSE(Int8Weights::Takes(mixed));
}

}  // namespace
}  // namespace runahead
