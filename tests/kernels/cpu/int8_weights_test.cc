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

const Int8Kernels& EmulatedAmxInt8Kernels();      // int8_emulated_amx.cc; needs AVX512-VNNI
int64_t EmulatedAmxStrips();                      // that its tiles were configured for so far
const Int8Kernels& EmulatedAvxVnniInt8Kernels();  // int8_emulated_vnni.cc

namespace {

// Those of this machine, and what can be emulated.
std::vector<const Int8Kernels*> KernelsHere() {
  std::vector<const Int8Kernels*> kernels = {&Avx2Int8Kernels(), &EmulatedAvxVnniInt8Kernels()};
  const CpuVnni vnni = DetectCpuVnni();
  if (vnni.avx) kernels.push_back(&AvxVnniInt8Kernels());
  if (vnni.avx512) kernels.insert(kernels.end(), {&Avx512VnniInt8Kernels(), &EmulatedAmxInt8Kernels()});
  if (vnni.amx) kernels.push_back(&AmxInt8Kernels());
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

// What product.h says of block `b` of a row: what it adds to y, of a block of activations.
float AddBlock(const RandomWeights& weights, int64_t row, int64_t b, const ScalarBlock& x, float y) {
  const std::byte* at = weights.bytes.data() + row * WeightRowBytes(weights.type, weights.cols) +
                        b * kInt8Block / BlockOf(weights.type).elements * BlockOf(weights.type).bytes;
  uint16_t halves[2];
  std::memcpy(halves, at, sizeof(halves));
  const float d = static_cast<float>(HalfToDouble(halves[0]));
  const float m = weights.HasMinimum() ? static_cast<float>(HalfToDouble(halves[1])) : 0.0f;
  int sum = 0;
  for (int i = 0; i < kInt8Block; ++i) {
    // Levels are integers: exact, whatever d is but zero.
    const double level = d == 0 ? 0 : (weights.Value(row, b * kInt8Block + i) - m) / d;
    sum += static_cast<int>(std::lround(level)) * x.q[i];
  }
  y = std::fma(d * x.scale, static_cast<float>(sum), y);
  if (weights.HasMinimum()) y = std::fma(m, x.scale * static_cast<float>(x.sum), y);
  return y;
}

template <WeightType type>
float AddSuperblockPart(const uint8_t* block, int part, const ScalarBlock& x, float y) {
  constexpr int kColumns = SuperblockScaleColumns(type), kScales = kInt8Block / kColumns;
  const auto half = [&](int at) {
    uint16_t value;
    std::memcpy(&value, block + at, sizeof(value));
    return static_cast<float>(HalfToDouble(value));
  };
  int64_t sum = 0, least = 0, sums_of_u = 0;
  for (int i = 0; i < kInt8Block; ++i) {
    const int u = SuperblockU<type>(block, part * kInt8Block + i), s = part * kScales + i / kColumns;
    const int level = type == WeightType::kIQ4_XS ? kIq4Levels[u] : u - SuperblockOffset(type);
    sum += SuperblockScale<type>(block, s) * level * x.q[i];
    sums_of_u += level * x.q[i];
    least += SuperblockMin<type>(block, s) * x.q[i];
  }
  const float d = half(SuperblockDAt(type)), dmin = SuperblockHasMin(type) ? half(SuperblockMinAt(type)) : 0.0f;
  if (kScales == 2) {
    y = std::fma(d * x.scale, static_cast<float>(sum), y);
    return SuperblockHasMin(type) ? std::fma(-dmin * x.scale, static_cast<float>(least), y) : y;
  }
  const float scale = d * static_cast<float>(SuperblockScale<type>(block, part));
  y = std::fma(scale * x.scale, static_cast<float>(sums_of_u), y);
  if (!SuperblockHasMin(type)) return y;
  return std::fma(-dmin * static_cast<float>(SuperblockMin<type>(block, part)), x.scale * static_cast<float>(x.sum), y);
}

float ScalarProduct(const RandomWeights& weights, int64_t row, const float* x, float y = 0) {
  for (int64_t b = 0; b < weights.cols / kInt8Block; ++b) {
    const ScalarBlock block(x + b * kInt8Block);
    if (!IsSuperblock(weights.type)) {
      y = AddBlock(weights, row, b, block, y);
      continue;
    }
    constexpr int64_t kParts = kSuperblock / kInt8Block;
    const std::byte* at = weights.bytes.data() + row * WeightRowBytes(weights.type, weights.cols) +
                          b / kParts * BlockOf(weights.type).bytes;
    VisitSuperblock(weights.type, [&]<WeightType type>() {
      y = AddSuperblockPart<type>(reinterpret_cast<const uint8_t*>(at), static_cast<int>(b % kParts), block, y);
    });
  }
  return y;
}

// Of m rows of x with all of the weights.
std::vector<float> ScalarProducts(const RandomWeights& weights, const std::vector<float>& x, int64_t m) {
  std::vector<float> y;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t n = 0; n < weights.rows; ++n) y.push_back(ScalarProduct(weights, n, x.data() + i * weights.cols));
  }
  return y;
}

class Int8WeightsTest : public testing::TestWithParam<WeightType> {};

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
        for (const Int8Kernels* kernels : KernelsHere()) {
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
      for (const Int8Kernels* kernels : KernelsHere()) {
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
    for (const Int8Kernels* kernels : KernelsHere()) {
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

INSTANTIATE_TEST_SUITE_P(Types, Int8WeightsTest,
                         testing::Values(WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1,
                                         WeightType::kQ8_0, WeightType::kIQ4_NL, WeightType::kQ2_K, WeightType::kQ3_K,
                                         WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K, WeightType::kIQ4_XS),
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

TEST(Int8Weights, AccumulatesFromWhatIsThereInTheRangeAskedForOnly) {
  constexpr int64_t kCols = 96, kRows = 83, kFirst = 5, kAsked = 70, kM = 11, kStride = kAsked + 2;
  const RandomWeights source(WeightType::kQ4_1, kRows, kCols, 10);
  LoadedInt8 loaded(source.Source());
  const std::vector<float> x = RandomFloats(kM * kCols, 11), before = RandomFloats(kM * kStride, 12);
  for (const Int8Kernels* kernels : KernelsHere()) {
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
  constexpr int64_t kCols = 1024, kFirst = 7, kAsked = 130, kM = 2, kStride = kCols + 8;
  const RandomWeights a(WeightType::kQ4_1, 83, kCols, 10), b(WeightType::kQ8_0, 70, kCols, 13);
  WeightSource source = a.Source();
  source.runs.push_back(b.Source().runs[0]);
  LoadedInt8 loaded(source);
  const std::vector<float> x = RandomFloats(kM * kStride, 11), bias = RandomFloats(kAsked, 12);
  const std::vector<float> finished = loaded.Multiply(Avx2Int8Kernels(), {.x = x.data(),
                                                                          .x_stride = kStride,
                                                                          .m = kM,
                                                                          .first_row = kFirst,
                                                                          .cols = kAsked,
                                                                          .bias = bias.data(),
                                                                          .activation = Activation::kRelu});
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t n = 0; n < kAsked; ++n) {
      const float* const row = x.data() + i * kStride;
      const int64_t of = kFirst + n;
      const float sum = of < a.rows ? ScalarProduct(a, of, row) : ScalarProduct(b, of - a.rows, row);
      ASSERT_EQ(finished[i * kAsked + n], std::max(0.0f, sum + bias[n])) << i << " " << n;
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
  for (const Int8Kernels* kernels : KernelsHere()) {
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
