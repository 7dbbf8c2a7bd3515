#include "kernels/cpu/stored_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/cpu/cpu_isa.h"
#include "tests/kernels/cpu/random_weights.h"

namespace runahead {
namespace {

// Every ISA that this machine has.
std::vector<bool> Avx512Choices() {
  if (DetectCpuIsa() >= CpuIsa::kAvx512) return {false, true};
  return {false};
}

struct Loaded {
  explicit Loaded(const WeightSource& source, int threads = 1) : pool(threads), arena(HostChunks(nullptr)) {
    weights = *StoredWeights::Make(source, arena, pool);
  }
  ThreadPool pool;
  Arena arena;
  std::optional<StoredWeights> weights;
};

class StoredWeightsTest : public ::testing::TestWithParam<WeightType> {
 protected:
  int64_t OddCols() const { return IsPlain(GetParam()) ? 129 : ColsFor(GetParam(), 96); }
};

TEST_P(StoredWeightsTest, RowsComeBackAsTheNearestFloat) {
  for (int64_t cols : {ColsFor(GetParam(), 32), OddCols(), ColsFor(GetParam(), 2080)}) {
    const RandomWeights source(GetParam(), 7, cols, 1);
    Loaded loaded(source.Source());
    for (bool avx512 : Avx512Choices()) {
      for (int64_t row = 0; row < 7; ++row) {
        std::vector<float> out(cols + 1, 42.0f);
        loaded.weights->DequantizeRow(KernelsFor(avx512), row, out.data());
        for (int64_t c = 0; c < cols; ++c)
          ASSERT_EQ(out[c], static_cast<float>(source.Value(row, c))) << row << " " << c;
        EXPECT_EQ(out[cols], 42.0f);  // nothing beyond the row is written
      }
    }
  }
}

TEST_P(StoredWeightsTest, ProductsAgreeWithDouble) {
  for (int64_t cols : {ColsFor(GetParam(), 32), OddCols(), ColsFor(GetParam(), 2080)}) {
    for (int64_t rows : {1, 2, 4, 6, 129}) {
      const RandomWeights source(GetParam(), rows, cols, 2);
      Loaded loaded(source.Source(), 2);
      const int64_t m = 5;
      const std::vector<float> x = RandomFloats(m * cols, 3);
      for (bool avx512 : Avx512Choices()) {
        std::vector<float> out(m * rows);
        loaded.weights->Matvec(KernelsFor(avx512), loaded.pool,
                               {.x = x.data(), .x_stride = cols, .m = m, .out = out.data(), .out_stride = rows});
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t n = 0; n < rows; ++n) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < cols; ++k) {
              sum += x[i * cols + k] * source.Value(n, k);
              size += std::abs(x[i * cols + k] * source.Value(n, k));
            }
            ASSERT_NEAR(out[i * rows + n], sum, 1e-6 * size) << i << " " << n << " avx512 " << avx512;
          }
        }
      }
    }
  }
}

TEST_P(StoredWeightsTest, ARowIsBitwiseTheSameInAnyBatchOnAnyIsaAndThreads) {
  const int64_t cols = OddCols() == 129 ? 321 : ColsFor(GetParam(), 320);
  const int64_t rows = 203;
  const int64_t most = 19;
  const RandomWeights source(GetParam(), rows, cols, 4);
  const std::vector<float> x = RandomFloats(most * cols, 5);
  std::vector<float> alone(most * rows);
  {
    Loaded loaded(source.Source());
    for (int64_t i = 0; i < most; ++i) {
      loaded.weights->Matvec(
          KernelsFor(false), loaded.pool,
          {.x = x.data() + i * cols, .x_stride = cols, .m = 1, .out = alone.data() + i * rows, .out_stride = rows});
    }
  }
  for (int threads : {1, 2, 3}) {
    Loaded loaded(source.Source(), threads);
    for (bool avx512 : Avx512Choices()) {
      for (int64_t m = 1; m <= most; ++m) {
        std::vector<float> out(m * rows);
        loaded.weights->Matvec(KernelsFor(avx512), loaded.pool,
                               {.x = x.data(), .x_stride = cols, .m = m, .out = out.data(), .out_stride = rows});
        ASSERT_EQ(out, std::vector<float>(alone.begin(), alone.begin() + m * rows)) << m << " threads " << threads;
      }
    }
  }
}

// One column at a time: beside another block a small scale would be lost.
TEST_P(StoredWeightsTest, AFiniteScaleComesBackAndMultipliesExactly) {
  const int64_t cols = OddCols(), rows = 67;
  const RandomWeights source(GetParam(), rows, cols, 9, DrawnScales::kAllFinite);
  Loaded loaded(source.Source());
  for (const bool avx512 : Avx512Choices()) {
    const CpuKernels& kernels = KernelsFor(avx512);
    std::vector<float> row(cols), x(cols, 0.0f), out(rows);
    for (int64_t n = 0; n < rows; ++n) {
      loaded.weights->DequantizeRow(kernels, n, row.data());
      for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(row[c], static_cast<float>(source.Value(n, c))) << n << " " << c;
    }
    for (int64_t c = 0; c < cols; ++c) {
      x[c] = 1.0f;
      loaded.weights->Matvec(kernels, loaded.pool,
                             {.x = x.data(), .x_stride = cols, .m = 1, .out = out.data(), .out_stride = rows});
      x[c] = 0.0f;
      for (int64_t n = 0; n < rows; ++n) ASSERT_EQ(out[n], static_cast<float>(source.Value(n, c))) << n << " " << c;
    }
  }
}

// Whatever it meets, zeros too: a service then says that logits are not finite.
TEST_P(StoredWeightsTest, ADamagedScaleShowsInItsRowAndInNoOther) {
  if (IsPlain(GetParam()) && GetParam() != WeightType::kF16) return;  // no f16
  constexpr int64_t kRows = 37, kM = 5;
  const int64_t cols = OddCols();
  const RandomWeights sound(GetParam(), kRows, cols, 10);
  std::vector<float> x = RandomFloats(kM * cols, 11);
  std::fill_n(x.begin() + 3 * cols, cols, 0.0f);
  for (const bool minimum : {false, true}) {
    if (minimum && !sound.HasMinimum()) continue;
    for (const uint16_t half : kDamagedHalves) {
      for (const int64_t bad : {0, 9, 20, 36}) {
        const RandomWeights damaged = sound.WithHalf(bad, cols - 1, minimum, half);
        Loaded loaded(damaged.Source());
        for (const bool avx512 : Avx512Choices()) {
          const CpuKernels& kernels = KernelsFor(avx512);
          std::vector<float> out(kM * kRows), row(cols);
          loaded.weights->Matvec(kernels, loaded.pool,
                                 {.x = x.data(), .x_stride = cols, .m = kM, .out = out.data(), .out_stride = kRows});
          for (int64_t at = 0; at < kM * kRows; ++at) {
            ASSERT_EQ(std::isfinite(out[at]), at % kRows != bad) << half << " " << at << " avx512 " << avx512;
          }
          loaded.weights->DequantizeRow(kernels, bad, row.data());
          ASSERT_FALSE(std::isfinite(row[cols - 1])) << half << " avx512 " << avx512;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, StoredWeightsTest, ::testing::ValuesIn(kAllWeightTypes));

TEST(StoredWeights, StacksRunsOfSeveralTypesAndPermutesRows) {
  const int64_t cols = 64;
  const RandomWeights a(WeightType::kQ4_1, 6, cols, 6), b(WeightType::kQ8_0, 3, cols, 7);
  const size_t row_bytes = WeightRowBytes(WeightType::kQ4_1, cols);
  WeightSource source{nullptr, cols, {}};
  const int order[] = {5, 0, 3, 1, 4, 2};
  for (int row : order) source.runs.push_back({a.type, a.bytes.data() + row * row_bytes, 1});
  source.runs.push_back(b.Rows());
  Loaded loaded(source);
  std::vector<float> x(cols, 0.0f), out(9);
  x[40] = 1.0f;
  loaded.weights->Matvec(KernelsFor(false), loaded.pool,
                         {.x = x.data(), .x_stride = cols, .m = 1, .out = out.data(), .out_stride = 9});
  for (int n = 0; n < 9; ++n) {
    const double value = n < 6 ? a.Value(order[n], 40) : b.Value(n - 6, 40);
    EXPECT_EQ(out[n], static_cast<float>(value)) << n;
    std::vector<float> row(cols);
    loaded.weights->DequantizeRow(KernelsFor(false), n, row.data());
    EXPECT_EQ(row[40], static_cast<float>(value)) << n;
  }
}

TEST(StoredWeights, RunsWithAndWithoutSuperblocksAreOneMatrix) {
  constexpr int64_t kCols = 256;
  const RandomWeights a(WeightType::kQ4_K, 21, kCols, 6), b(WeightType::kF16, 3, kCols, 7),
      c(WeightType::kQ6_K, 18, kCols, 8);
  WeightSource source = a.Source();
  source.runs.push_back(b.Rows());
  source.runs.push_back(c.Rows());
  Loaded loaded(source);
  for (int64_t col : {0, 100, 255}) {
    std::vector<float> x(kCols, 0.0f), out(30, 7.0f);
    x[col] = 1.0f;
    loaded.weights->Matvec(
        KernelsFor(false), loaded.pool,
        {.x = x.data(), .x_stride = kCols, .m = 1, .out = out.data(), .out_stride = 30, .begin_row = 5, .end_row = 35});
    for (int64_t n = 5; n < 35; ++n) {
      const double value = n < 21 ? a.Value(n, col) : n < 24 ? b.Value(n - 21, col) : c.Value(n - 24, col);
      EXPECT_EQ(out[n - 5], static_cast<float>(value)) << n;
    }
  }
}

class StoredWeightsOut : public ::testing::TestWithParam<WeightType> {};
INSTANTIATE_TEST_SUITE_P(Layouts, StoredWeightsOut, ::testing::Values(WeightType::kQ4_1, WeightType::kQ4_K));

TEST_P(StoredWeightsOut, AccumulatesStridesAndRounds) {
  const int64_t cols = ColsFor(GetParam(), 96), stride = cols + 4;
  const RandomWeights source(GetParam(), 5, cols, 8);
  const std::vector<float> x = RandomFloats(2 * stride, 9);
  Loaded loaded(source.Source());
  for (bool avx512 : Avx512Choices()) {
    const CpuKernels& kernels = KernelsFor(avx512);
    std::vector<float> plain(2 * 5), sum(2 * 8, 0.5f);
    std::vector<uint16_t> rounded(2 * 5);
    MatvecArgs args{.x = x.data(), .x_stride = stride, .m = 2, .out = plain.data(), .out_stride = 5};
    loaded.weights->Matvec(kernels, loaded.pool, args);
    args.out = rounded.data();
    args.out_dtype = DType::kBF16;
    loaded.weights->Matvec(kernels, loaded.pool, args);
    args.out = sum.data();
    args.out_dtype = DType::kF32;
    args.out_stride = 8;
    args.accumulate = true;
    loaded.weights->Matvec(kernels, loaded.pool, args);
    for (int m = 0; m < 2; ++m) {
      for (int n = 0; n < 8; ++n) {
        EXPECT_EQ(sum[m * 8 + n], n < 5 ? 0.5f + plain[m * 5 + n] : 0.5f);
      }
      for (int n = 0; n < 5; ++n) EXPECT_EQ(rounded[m * 5 + n], ToBFloat16(plain[m * 5 + n]).bits);
    }
  }
}

}  // namespace
}  // namespace runahead
