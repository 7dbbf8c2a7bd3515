#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <typeinfo>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/gemm_plan.h"
#include "kernels/cpu/panel_gemm.h"
#include "tests/kernels/cpu/random_weights.h"

namespace runahead {
namespace {

TEST(GemmPlan, CoversEveryElementOnce) {
  for (int threads : {1, 2, 3, 16}) {
    for (int64_t m : {1, 3, 15, 16, 17, 44, 63, 64, 100, 128, 129, 300, 513, 1000, 2048}) {
      for (int64_t n : {1, 64, 129, 576}) {
        for (bool sliceable : {false, true}) {
          std::vector<int> seen(m * n, 0);
          for (const GemmTask& task : PlanGemm({m, n, 576, 2, sliceable}, threads)) {
            EXPECT_GE(task.call_rows, task.rows);
            EXPECT_EQ(task.col % kGemmSlice, 0);
            EXPECT_TRUE(sliceable || task.cols == n);
            for (int64_t r = task.row; r < task.row + task.rows; ++r) {
              for (int64_t c = task.col; c < task.col + task.cols; ++c) ++seen[r * n + c];
            }
          }
          ASSERT_EQ(seen, std::vector<int>(m * n, 1)) << m << " x " << n << " on " << threads;
        }
      }
    }
  }
}

TEST(GemmPlan, DealsRowsOutEvenlyAndPadsLittle) {
  const auto even = PlanGemm({2048, 576, 576, 2, true}, 2);
  ASSERT_EQ(even.size(), 4u);
  for (const GemmTask& task : even) EXPECT_EQ(task, (GemmTask{task.row, 512, 512, 0, 576}));
  for (int64_t m = 1; m < 700; ++m) {
    int64_t work[2] = {};  // rows x columns per thread, dealt out in turn
    int next = 0;
    for (const GemmTask& task : PlanGemm({m, 576, 576, 2, true}, 2)) work[next++ % 2] += task.call_rows * task.cols;
    const double ideal = m <= 16 ? 8.0 * 576 : m * 576 / 2.0;
    // Nine slices of columns are dealt out five to four, and a last block is padded by an eighth at most.
    EXPECT_LE(std::max(work[0], work[1]), (10.0 / 9) * (9.0 / 8) * ideal + 16 * 320) << m;
  }
}

struct Case {
  DType dtype;
  int64_t m, n, k;
};

class GemmTest : public ::testing::TestWithParam<int> {};  // threads

double Rounded(DType dtype, double value) {
  return dtype == DType::kF32 ? static_cast<float>(value) : ToFloat(ToBFloat16(static_cast<float>(value)));
}

// All rows of w in double; x as stored.
void CheckCase(const Case& c, int threads, bool accumulate, DType out_dtype, int64_t pad) {
  ThreadPool pool(threads);
  Arena arena(HostChunks(nullptr));
  auto gemm = *Gemm::Make(c.dtype, pool);
  const std::vector<float> w = RandomFloats(c.n * c.k, 1), x = RandomFloats(c.m * (c.k + pad), 2);
  auto packed = *gemm->Pack(
      c.n, c.k, [&](int64_t r, float* out) { std::copy_n(w.data() + r * c.k, c.k, out); }, arena);
  std::vector<uint16_t> x16;
  for (float value : x) x16.push_back(ToBFloat16(value).bits);
  const int64_t stride = c.n + pad;
  std::vector<float> out(c.m * stride, 0.25f);
  std::vector<uint16_t> out16(c.m * stride, 7);
  GemmArgs args{.x = c.dtype == DType::kF32 ? static_cast<const void*>(x.data()) : x16.data(),
                .x_stride = c.k + pad,
                .m = c.m,
                .out = out_dtype == DType::kF32 ? static_cast<void*>(out.data()) : out16.data(),
                .out_dtype = out_dtype,
                .out_stride = stride,
                .accumulate = accumulate};
  gemm->Run(*packed, args);
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t n = 0; n < c.n; ++n) {
      double sum = accumulate ? 0.25 : 0, size = 0.25;
      for (int64_t k = 0; k < c.k; ++k) {
        const double term = Rounded(c.dtype, x[i * (c.k + pad) + k]) * Rounded(c.dtype, w[n * c.k + k]);
        sum += term;
        size += std::abs(term);
      }
      const float got = out_dtype == DType::kF32 ? out[i * stride + n] : ToFloat(BFloat16{out16[i * stride + n]});
      ASSERT_NEAR(got, sum, 2e-6 * size + (out_dtype == DType::kF32 ? 0 : std::abs(sum) / 128))
          << c.m << "x" << c.n << "x" << c.k << " at " << i << "," << n;
    }
    for (int64_t n = c.n; n < stride; ++n) {
      ASSERT_EQ(out[i * stride + n], 0.25f);
      ASSERT_EQ(out16[i * stride + n], 7);
    }
  }
}

void CheckShapes(DType dtype, int threads) {
  for (int64_t m : {1, 3, 17, 44, 129, 200}) {
    for (auto [n, k] : {std::pair<int64_t, int64_t>{129, 129}, {64, 32}, {1, 7}, {200, 96}, {17, 600}}) {
      const Case c{dtype, m, n, k};
      CheckCase(c, threads, false, DType::kF32, 0);
      CheckCase(c, threads, true, DType::kF32, 0);
      CheckCase(c, threads, true, DType::kF32, 3);
    }
  }
}

TEST_P(GemmTest, F32AgreesWithDouble) {
  CheckShapes(DType::kF32, GetParam());
}

TEST_P(GemmTest, Bf16AgreesWithDouble) {
  if (!SupportsBf16(DetectCpuIsa())) GTEST_SKIP() << "no bf16 without AVX-512";
  CheckShapes(DType::kBF16, GetParam());
}

TEST_P(GemmTest, F32RoundsItsOutputWhereAsked) {
  CheckCase({DType::kF32, 40, 129, 64}, GetParam(), false, DType::kBF16, 0);
  CheckCase({DType::kF32, 200, 129, 300}, GetParam(), false, DType::kBF16, 3);
}

TEST_P(GemmTest, Bf16RoundsItsOutputWhereAsked) {
  if (!SupportsBf16(DetectCpuIsa())) GTEST_SKIP() << "no bf16 without AVX-512";
  CheckCase({DType::kBF16, 77, 129, 64}, GetParam(), false, DType::kBF16, 0);
  CheckCase({DType::kBF16, 77, 129, 64}, GetParam(), false, DType::kBF16, 3);
}

// All of them are made with calls of four rows.
TEST_P(GemmTest, ARowIsBitwiseTheSameInAPaddedCall) {
  constexpr int64_t kMost = 4, kN = 129, kK = 96;
  const std::vector<float> w = RandomFloats(kN * kK, 1), x = RandomFloats(kMost * kK, 2), bias = RandomFloats(kN, 3);
  std::vector<uint16_t> x16;
  for (float value : x) x16.push_back(ToBFloat16(value).bits);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (dtype == DType::kBF16 && !SupportsBf16(DetectCpuIsa())) continue;
    ThreadPool pool(GetParam());
    Arena arena(HostChunks(nullptr));
    auto gemm = *Gemm::Make(dtype, pool);
    auto packed = *gemm->Pack(
        kN, kK, [&](int64_t r, float* out) { std::copy_n(w.data() + r * kK, kK, out); }, arena);
    const auto multiply = [&](int64_t m) {
      std::vector<float> out(m * kN, 0.3f);
      GemmArgs args{.x = x.data(), .x_stride = kK, .m = m, .out = out.data(), .out_stride = kN, .accumulate = true};
      if (dtype == DType::kBF16) args.x = x16.data();
      args.bias = bias.data();
      gemm->Run(*packed, args);
      return out;
    };
    const std::vector<float> all = multiply(kMost);
    for (int64_t m = dtype == DType::kBF16 ? 1 : 3; m < kMost; ++m) {
      EXPECT_EQ(multiply(m), std::vector<float>(all.begin(), all.begin() + m * kN)) << DTypeName(dtype) << " " << m;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, GemmTest, ::testing::Values(1, 2, 3));

// On every machine, whichever product it takes for its own.
TEST(PanelGemm, AnElementIsBitwiseTheSameWhateverIsBesideItAndOnAnyThreads) {
  constexpr int64_t kRows = 200, kK = 600, kN = 137;
  const std::vector<float> w = RandomFloats(kN * kK, 1), x = RandomFloats(kRows * kK, 2);
  const auto multiply = [&](int threads, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    ThreadPool pool(threads);
    Arena arena(HostChunks(nullptr));
    const auto gemm = NewPanelGemm(pool);
    const auto packed = *gemm->Pack(
        cols, kK, [&](int64_t r, float* out) { std::copy_n(w.data() + (col + r) * kK, kK, out); }, arena);
    std::vector<float> out(rows * cols);
    gemm->Run(*packed, {.x = x.data() + row * kK, .x_stride = kK, .m = rows, .out = out.data(), .out_stride = cols});
    return out;
  };
  const std::vector<float> all = multiply(1, 0, kRows, 0, kN);
  EXPECT_EQ(multiply(3, 0, kRows, 0, kN), all);
  for (int64_t rows = 1; rows <= 8; ++rows) {
    const int64_t row = 23 * rows, col = 9 * rows, cols = 5 + 3 * rows;
    const std::vector<float> part = multiply(2, row, rows, col, cols);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t n = 0; n < cols; ++n) {
        ASSERT_EQ(part[i * cols + n], all[(row + i) * kN + col + n]) << rows << " rows: " << i << "," << n;
      }
    }
  }
}

TEST(Gemm, F32IsMultipliedByOurOwnPanelsOnAvx2Only) {
  ThreadPool pool(1);
  const std::unique_ptr<Gemm> own = NewPanelGemm(pool), taken = *Gemm::Make(DType::kF32, pool);
  const Gemm &a = *own, &b = *taken;
  EXPECT_EQ(typeid(a) == typeid(b), DetectCpuIsa() == CpuIsa::kAvx2);
}

TEST(Gemm, RefusesF16) {
  ThreadPool pool(1);
  EXPECT_EQ(Gemm::Make(DType::kF16, pool).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace runahead
