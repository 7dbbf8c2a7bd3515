#include "kernels/cpu/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_isa.h"
#include "tests/kernels/cpu/random_weights.h"

namespace runahead {
namespace {

Tensor Empty(DType dtype, int64_t rows, int64_t cols) {
  return MakeTensor(BufferRef::Whole(*AllocateHostMemory(rows * cols * DTypeSize(dtype), nullptr)), dtype, rows, cols);
}

Tensor Filled(const std::vector<float>& values, int64_t rows) {
  const Tensor tensor = Empty(DType::kF32, rows, static_cast<int64_t>(values.size()) / rows);
  std::memcpy(tensor.ref.data(), values.data(), values.size() * sizeof(float));
  return tensor;
}

// What a device has for its Linear, in f32. int8: quantised weights are multiplied in 8 bits.
struct Products {
  explicit Products(int threads, bool int8 = false) : pool(threads), arena(HostChunks(nullptr)) {
    linear.int8 = int8 ? &FastestInt8Kernels() : nullptr;
  }

  std::shared_ptr<const CpuWeights> Load(const RandomWeights& source, unsigned uses) {
    return *CpuWeights::Load(source.Source(), uses, {linear.kernels, pool, *gemm, arena, linear.int8});
  }
  void Run(const CpuWeights& weights, const Tensor& x, const LinearOptions& options, const Tensor& out) const {
    linear.Run(weights, x, options, *CpuLinear::SumsFor(weights, options, out), out);
  }

  ThreadPool pool;
  std::unique_ptr<Gemm> gemm = *Gemm::Make(DType::kF32, pool);
  Arena arena;
  CpuLinear linear{KernelsFor(DetectCpuIsa() >= CpuIsa::kAvx512), pool, *gemm};
};

class CpuLinearThreads : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, CpuLinearThreads, ::testing::Values(1, 2));

TEST_P(CpuLinearThreads, PackedAndStoredFormsAgreeWithDouble) {
  Products products(GetParam());
  const int64_t m = 37, n = 129;
  for (WeightType type : kAllWeightTypes) {
    const int64_t k = ColsFor(type, 96);
    const RandomWeights source(type, n, k, 1);
    const auto weights = products.Load(source, kUsePrefill | kUseDecode);
    const Tensor x = Filled(RandomFloats(m * k, 2), m);
    for (bool invariant : {false, true}) {
      const Tensor out = Filled(std::vector<float>(m * n, 0.5f), m);
      products.Run(*weights, x, {.accumulate = true, .batch_invariant = invariant}, out);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0.5, size = 0.5;
          for (int64_t c = 0; c < k; ++c) {
            sum += x.row<float>(i)[c] * source.Value(j, c);
            size += std::abs(x.row<float>(i)[c] * source.Value(j, c));
          }
          ASSERT_NEAR(out.row<float>(i)[j], sum, 1e-6 * size) << invariant;
        }
      }
    }
  }
}

TEST(CpuLinear, In8BitsPrefillAndDecodeGiveBitwiseTheSame) {
  Products products(2, /*int8=*/true);
  const auto weights = products.Load(RandomWeights(WeightType::kQ4_1, 130, 96, 1), kUsePrefill | kUseDecode);
  const Tensor x = Filled(RandomFloats(70 * 96, 2), 70);
  const Tensor prefill = Empty(DType::kF32, 70, 130), decode = Empty(DType::kF32, 1, 130);
  const Tensor some = Empty(DType::kF32, 1, 40);
  products.Run(*weights, x, {}, prefill);
  products.Run(*weights, x.Rows(69, 1), {.batch_invariant = true}, decode);
  products.Run(*weights, x.Rows(69, 1), {.first_row = 3}, some);  // no cut is needed
  for (int64_t n = 0; n < 130; ++n) EXPECT_EQ(decode.row<float>(0)[n], prefill.row<float>(69)[n]) << n;
  for (int64_t n = 0; n < 40; ++n) EXPECT_EQ(some.row<float>(0)[n], decode.row<float>(0)[3 + n]) << n;
}

class CpuLinearForms : public ::testing::TestWithParam<bool> {};  // in 8 bits, or as stored
INSTANTIATE_TEST_SUITE_P(Int8, CpuLinearForms, ::testing::Bool());

TEST_P(CpuLinearForms, RowsThatLieApartAreAddedToInTheRangeAskedFor) {
  constexpr int64_t kRows = 5, kCols = 96, kFirst = 3, kAsked = 70;
  Products products(2, GetParam());
  const auto weights = products.Load(RandomWeights(WeightType::kQ4_1, 130, kCols, 1), kUseDecode);
  Tensor x = Filled(RandomFloats(kRows * (kCols + 40), 2), kRows);
  x.cols = kCols;
  const std::vector<float> before = RandomFloats(kRows * (kAsked + 9), 3);
  const Tensor all = Filled(before, kRows);
  Tensor out = all;
  out.cols = kAsked;
  products.Run(*weights, x, {.accumulate = true, .batch_invariant = true, .first_row = kFirst}, out);
  for (int64_t r = 0; r < kRows; ++r) {
    const Tensor alone = Filled(std::vector<float>(x.row<float>(r), x.row<float>(r) + kCols), 1);
    const Tensor sums = Empty(DType::kF32, 1, 130);
    products.Run(*weights, alone, {.batch_invariant = true}, sums);
    for (int64_t n = 0; n < kAsked + 9; ++n) {
      const float was = before[r * (kAsked + 9) + n], got = all.row<float>(r)[n];
      if (n >= kAsked) {
        ASSERT_EQ(got, was) << r << " " << n;
      } else {
        const float sum = sums.row<float>(0)[kFirst + n];
        ASSERT_NEAR(got, was + sum, 1e-5 * (1 + std::abs(sum))) << r << " " << n;
      }
    }
  }
}

TEST_P(CpuLinearForms, OutIsRoundedOnceAfterBiasAndActivation) {
  constexpr int64_t kN = 600;  // more than are finished at a time
  Products products(1, GetParam());
  const auto weights = products.Load(RandomWeights(WeightType::kQ8_0, kN, 64, 3), kUseDecode);
  const Tensor x = Filled(RandomFloats(3 * 64, 4), 3), bias = Filled(RandomFloats(kN, 5), 1);
  const Tensor exact = Empty(DType::kF32, 3, kN), out = Empty(DType::kBF16, 3, kN), plain = Empty(DType::kBF16, 3, kN);
  products.Run(*weights, x, {.batch_invariant = true}, exact);
  products.Run(*weights, x, {.batch_invariant = true}, plain);
  products.Run(*weights, x, {.batch_invariant = true, .bias = bias, .activation = Activation::kRelu}, out);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t n = 0; n < kN; ++n) {
      const float sum = exact.row<float>(r)[n], wanted = std::max(0.0f, sum + bias.row<float>(0)[n]);
      EXPECT_EQ(plain.row<BFloat16>(r)[n].bits, ToBFloat16(sum).bits) << r << " " << n;
      EXPECT_EQ(out.row<BFloat16>(r)[n].bits, ToBFloat16(wanted).bits) << r << " " << n;
    }
  }
}

}  // namespace
}  // namespace runahead
