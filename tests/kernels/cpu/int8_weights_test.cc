#include "kernels/cpu/int8/int8_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/kernels/cpu/int8_reference.h"

namespace runahead {
namespace {

class Int8WeightsTest : public ::testing::TestWithParam<WeightType> {};

TEST_P(Int8WeightsTest, RowsComeBackAsTheNearestFloat) {
  for (int64_t rows : {1, 16, 37}) {
    const int64_t cols = ColsFor(GetParam(), 96);
    const RandomWeights source(GetParam(), rows, cols, 1);
    LoadedInt8 loaded(source.Source());
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<float> out(cols + 1, 42.0f);
      loaded.weights->DequantizeRow(row, out.data());
      for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(out[c], static_cast<float>(source.Value(row, c))) << row << " " << c;
      EXPECT_EQ(out[cols], 42.0f);  // nothing beyond the row is written
    }
  }
}

TEST_P(Int8WeightsTest, ProductsAreBitwiseThoseOfTheScalarFormula) {
  for (int64_t some : {32, 300, 1088}) {
    const int64_t cols = ColsFor(GetParam(), some / kInt8Block * kInt8Block);
    for (int64_t rows : {1, 16, 33}) {
      for (int64_t m : {1, 3, 8, 23, 64, 67}) {
        const RandomWeights source(GetParam(), rows, cols, 2);
        LoadedInt8 loaded(source.Source(), 2);
        const std::vector<float> x = RandomFloats(m * cols, 3);
        const std::vector<float> wanted = ScalarProducts(source, x, m);
        for (const Int8Kernels* kernels : Int8KernelsHere()) {
          const std::vector<float> out =
              loaded.Multiply(*kernels, {.x = x.data(), .x_stride = cols, .m = m, .cols = rows});
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t n = 0; n < rows; ++n) {
              ASSERT_EQ(out[i * rows + n], wanted[i * rows + n])
                  << kernels->name << " row " << i << " of " << m << ", column " << n << " of " << rows;
            }
          }
        }
      }
    }
  }
}

// Elements and integer scales of one block become `fill`; d and dmin stay.
void FillAllButHalves(const RandomWeights& weights, std::byte* block, uint8_t fill) {
  const WeightType type = weights.type;
  const int bytes = BlockOf(type).bytes;
  for (int at = 0; at < bytes; at += 2) {
    const bool half = IsSuperblock(type)
                          ? at == SuperblockDAt(type) || (weights.HasMinimum() && at == SuperblockMinAt(type))
                          : at < BlockOf(type).scale_bytes();
    if (!half) std::memset(block + at, fill, 2);
  }
}

TEST_P(Int8WeightsTest, TheLargestWeightsAndActivationsDoNotSaturate) {
  constexpr int64_t kRows = 18, kM = 9;
  const int64_t cols = ColsFor(GetParam(), 64);
  RandomWeights source(GetParam(), kRows, cols, 4);
  const WeightBlock& block = BlockOf(GetParam());
  for (uint8_t fill : {0x00, 0x7f, 0x80, 0xff}) {
    for (size_t at = 0; at < source.bytes.size(); at += block.bytes) {
      FillAllButHalves(source, source.bytes.data() + at, fill);
    }
    LoadedInt8 loaded(source.Source());
    for (float sign : {1.0f, -1.0f}) {
      const std::vector<float> x(kM * cols, 3.25f * sign), wanted = ScalarProducts(source, x, kM);
      for (const Int8Kernels* kernels : Int8KernelsHere()) {
        const std::vector<float> out =
            loaded.Multiply(*kernels, {.x = x.data(), .x_stride = cols, .m = kM, .cols = kRows});
        for (int64_t at = 0; at < kM * kRows; ++at) {
          ASSERT_EQ(out[at], wanted[at]) << kernels->name << " " << at << " fill " << int{fill};
        }
      }
    }
  }
}

TEST_P(Int8WeightsTest, WhatIsNotFiniteStaysSoAndInItsRow) {
  constexpr int64_t kRows = 18, kM = 19, kBadRow = 5;
  const int64_t cols = ColsFor(GetParam(), 64);
  const RandomWeights source(GetParam(), kRows, cols, 13);
  LoadedInt8 loaded(source.Source());
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = RandomFloats(kM * cols, 14);
    const std::vector<float> wanted = ScalarProducts(source, x, kM);
    x[kBadRow * cols + 40] = bad;
    for (const Int8Kernels* kernels : Int8KernelsHere()) {
      const std::vector<float> out =
          loaded.Multiply(*kernels, {.x = x.data(), .x_stride = cols, .m = kM, .cols = kRows});
      for (int64_t at = 0; at < kM * kRows; ++at) {
        if (at / kRows == kBadRow) {
          ASSERT_FALSE(std::isfinite(out[at])) << kernels->name << " " << at;
        } else {
          ASSERT_EQ(out[at], wanted[at]) << kernels->name << " " << at;
        }
      }
    }
  }
}

TEST_P(Int8WeightsTest, ARowIsBitwiseTheSameInAnyBatchInAnyRangeAndOnAnyThreads) {
  constexpr int64_t kRows = 203, kMost = 70;
  const int64_t kCols = ColsFor(GetParam(), 320);
  const RandomWeights source(GetParam(), kRows, kCols, 5);
  const std::vector<float> x = RandomFloats(kMost * kCols, 6);
  LoadedInt8 loaded(source.Source(), 3), alone(source.Source());
  for (const Int8Kernels* kernels : Int8KernelsHere()) {
    const std::vector<float> all =
        loaded.Multiply(*kernels, {.x = x.data(), .x_stride = kCols, .m = kMost, .cols = kRows});
    for (int64_t i = 0; i < kMost; i += 23) {
      const std::vector<float> part = alone.Multiply(
          *kernels, {.x = x.data() + i * kCols, .x_stride = kCols, .m = 1, .first_row = 5, .cols = kRows - 9});
      for (int64_t n = 0; n < kRows - 9; ++n) ASSERT_EQ(part[n], all[i * kRows + 5 + n]) << kernels->name << " " << n;
    }
  }
}

// Integer scales of 4 and 6 bits take a byte, which is nothing or little beside the elements but in Q2_K.
TEST_P(Int8WeightsTest, AreAboutAsLargeAsInTheFileWhereRowsFillGroups) {
  const RandomWeights source(GetParam(), 64, 1024, 15);
  const size_t bytes = LoadedInt8(source.Source()).weights->memory().size;
  if (IsSuperblock(GetParam())) {
    EXPECT_GE(bytes, source.bytes.size());
    EXPECT_LE(static_cast<double>(bytes),
              (GetParam() == WeightType::kQ2_K ? 1.20 : 1.04) * static_cast<double>(source.bytes.size()));
  } else {
    EXPECT_EQ(bytes, source.bytes.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Int8WeightsTest, ::testing::ValuesIn(kInt8Types),
                         [](const auto& test) { return std::string(BlockOf(test.param).name); });

// As Q, K and V of a file: the rows of Q one by one, in an order of their own.
TEST(Int8Weights, QAndKAndVOfSeveralTypesAreOneMatrix) {
  using enum WeightType;
  constexpr int64_t kCols = 512, kM = 9;
  for (const auto& [q_type, k_type, v_type] :
       {std::tuple(kQ4_1, kQ4_1, kQ8_0), {kQ4_K, kQ4_K, kQ6_K}, {kQ2_K, kIQ4_XS, kQ3_K}, {kQ5_0, kQ5_K, kIQ4_NL}}) {
    const RandomWeights q(q_type, 37, kCols, 7), k(k_type, 21, kCols, 8), v(v_type, 18, kCols, 9);
    WeightSource source{nullptr, kCols, {}};
    for (int64_t row = q.rows; row-- > 0;) source.runs.push_back({q.type, q.BlockAt(row, 0), 1});
    source.runs.push_back(k.Rows());
    source.runs.push_back(v.Rows());
    LoadedInt8 loaded(source, 2);
    const std::vector<float> x = RandomFloats(kM * kCols, 9);
    const auto wanted = [&](int64_t row, const float* from) {
      if (row < q.rows) return ScalarProduct(q, q.rows - 1 - row, from);
      row -= q.rows;
      return row < k.rows ? ScalarProduct(k, row, from) : ScalarProduct(v, row - k.rows, from);
    };
    const int64_t all = q.rows + k.rows + v.rows;
    for (const auto& [first, asked] : {std::pair<int64_t, int64_t>{0, all}, {3, all - 5}, {40, 25}}) {
      for (const int64_t m : {int64_t{1}, kM}) {
        for (const Int8Kernels* kernels : Int8KernelsHere()) {
          const std::vector<float> out =
              loaded.Multiply(*kernels, {.x = x.data(), .x_stride = kCols, .m = m, .first_row = first, .cols = asked});
          for (int64_t at = 0; at < m * asked; ++at) {
            ASSERT_EQ(out[at], wanted(first + at % asked, x.data() + at / asked * kCols))
                << kernels->name << " of " << BlockOf(q_type).name << ": " << at / asked << " " << first + at % asked;
          }
        }
      }
    }
  }
}

TEST(Int8Weights, AccumulatesFromWhatIsThereInTheRangeAskedForOnly) {
  constexpr int64_t kCols = 96, kRows = 83, kFirst = 5, kAsked = 70, kM = 11, kStride = kAsked + 2;
  const RandomWeights source(WeightType::kQ4_1, kRows, kCols, 10);
  LoadedInt8 loaded(source.Source());
  const std::vector<float> x = RandomFloats(kM * kCols, 11), before = RandomFloats(kM * kStride, 12);
  for (const Int8Kernels* kernels : Int8KernelsHere()) {
    std::vector<float> out = before;
    loaded.weights->Multiply(KernelsFor(false), *kernels, loaded.pool,
                             {.x = x.data(),
                              .x_stride = kCols,
                              .m = kM,
                              .out = out.data(),
                              .out_stride = kStride,
                              .first_row = kFirst,
                              .cols = kAsked,
                              .accumulate = true});
    for (int64_t i = 0; i < kM * kStride; ++i) {
      const int64_t n = i % kStride;
      const float wanted =
          n < kAsked ? ScalarProduct(source, kFirst + n, x.data() + i / kStride * kCols, before[i]) : before[i];
      ASSERT_EQ(out[i], wanted) << kernels->name << " " << i / kStride << " " << n;
    }
  }
}

// In each of several tasks of either type.
TEST(Int8Weights, AddsABiasAndActivatesInTheRangeAskedFor) {
  constexpr int64_t kCols = 1024, kFirst = 7, kAsked = 130, kM = 9, kStride = kCols + 8;
  for (const auto& [a_type, b_type] :
       {std::pair(WeightType::kQ4_1, WeightType::kQ8_0), {WeightType::kQ4_K, WeightType::kQ6_K}}) {
    const RandomWeights a(a_type, 83, kCols, 10), b(b_type, 70, kCols, 13);
    WeightSource source = a.Source();
    source.runs.push_back(b.Source().runs[0]);
    LoadedInt8 loaded(source);
    const std::vector<float> x = RandomFloats(kM * kStride, 11), bias = RandomFloats(kAsked, 12);
    for (const Int8Kernels* kernels : Int8KernelsHere()) {
      const std::vector<float> finished = loaded.Multiply(*kernels, {.x = x.data(),
                                                                     .x_stride = kStride,
                                                                     .m = kM,
                                                                     .first_row = kFirst,
                                                                     .cols = kAsked,
                                                                     .bias = bias.data(),
                                                                     .activation = Activation::kRelu});
      for (int64_t at = 0; at < kM * kAsked; ++at) {
        const float* const row = x.data() + at / kAsked * kStride;
        const int64_t of = kFirst + at % kAsked;
        const float sum = of < a.rows ? ScalarProduct(a, of, row) : ScalarProduct(b, of - a.rows, row);
        ASSERT_EQ(finished[at], std::max(0.0f, sum + bias[at % kAsked])) << kernels->name << " " << at;
      }
    }
  }
}

TEST(Int8Weights, TilesAreForEightRowsAndMore) {
  if (!DetectCpuVnni().avx512) return;  // isa_coverage_test says so
  constexpr int64_t kCols = 32, kStrips = 3;
  const RandomWeights source(WeightType::kQ4_0, kStrips * kInt8StripRows, kCols, 16);
  LoadedInt8 loaded(source.Source());
  for (int64_t m : {1, 7, 8, 64, 72, 71}) {
    const std::vector<float> x = RandomFloats(m * kCols, 17);
    const int64_t before = EmulatedAmxStrips();
    loaded.Multiply(EmulatedAmxInt8Kernels(), {.x = x.data(), .x_stride = kCols, .m = m, .cols = source.rows});
    EXPECT_EQ(EmulatedAmxStrips() - before, kStrips * (m / 64 + (m % 64 >= 8))) << m;
  }
}

TEST(Int8Weights, TinyActivationsAreZeros) {
  constexpr int64_t kCols = 32, kM = 8;
  const RandomWeights source(WeightType::kQ5_1, 3, kCols, 14);
  LoadedInt8 loaded(source.Source());
  const std::vector<float> x(kM * kCols, 1e-40f);
  for (const Int8Kernels* kernels : Int8KernelsHere()) {
    for (float value : loaded.Multiply(*kernels, {.x = x.data(), .x_stride = kCols, .m = kM, .cols = 3})) {
      EXPECT_EQ(value, 0.0f) << kernels->name;
    }
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
