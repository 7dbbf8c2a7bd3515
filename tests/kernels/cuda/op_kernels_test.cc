// LayerNorm, Activate, Bias and GatherRows.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/matrix_cases.h"
#include "tests/testing/reference_activation.h"

namespace runahead {
namespace {

using LayerNormTest = GpuTest;

TEST_F(LayerNormTest, MatchesTheReference) {
  constexpr float kEps = 1e-5f;
  ForAllCases([&](DType in, DType out_dtype, int64_t cols, const Placement& placement) {
    if (in != DType::kF32) return;
    GpuMatrix x(in, 9, cols, placement.gap, placement.offset);
    x.UploadRandom(1, 3.0f);
    x.Upload([&](int64_t r, int64_t c) { return x.at(r, c) + (r == 4 ? 50.0f : 0.0f); });
    GpuMatrix weight(DType::kF32, 1, cols, 0, placement.offset);
    weight.UploadRandom(2);
    GpuMatrix bias(DType::kF32, 1, cols);
    bias.UploadRandom(3);
    GpuMatrix out(out_dtype, 9, cols, placement.gap, placement.offset);
    ASSERT_EQ(LaunchLayerNorm(x.matrix(), reinterpret_cast<const float*>(weight.Row(0)),
                              reinterpret_cast<const float*>(bias.Row(0)), kEps, out.matrix(), nullptr),
              cudaSuccess);
    out.Download();
    for (int64_t t = 0; t < 9; ++t) {
      double mean = 0, variance = 0;
      for (int64_t c = 0; c < cols; ++c) mean += x.at(t, c) / static_cast<double>(cols);
      for (int64_t c = 0; c < cols; ++c) variance += std::pow(x.at(t, c) - mean, 2) / static_cast<double>(cols);
      const double factor = 1 / std::sqrt(variance + kEps);
      for (int64_t c = 0; c < cols; ++c) {
        const double want = (x.at(t, c) - mean) * factor * weight.at(0, c) + bias.at(0, c);
        ExpectElement(out, t, c, want, 2 + std::fabs(mean) * factor, 16);
      }
    }
  });
}

// Wherever a row lies and whatever is beside it, its sums are taken in one order.
TEST_F(LayerNormTest, ARowIsBitwiseTheSameAnywhere) {
  for (const int64_t cols : {129, 1024, 4097}) {
    GpuMatrix affine(DType::kF32, 1, cols);
    affine.UploadRandom(4);
    const auto* weights = reinterpret_cast<const float*>(affine.Row(0));
    GpuMatrix first(DType::kF32, 1, cols, 3);
    GpuMatrix first_out(DType::kF32, 1, cols);
    first.UploadRandom(5);
    ASSERT_EQ(LaunchLayerNorm(first.matrix(), weights, weights, 1e-6f, first_out.matrix(), nullptr), cudaSuccess);
    first_out.Download();
    for (const Placement& placement : kPlacements) {
      GpuMatrix batch(DType::kF32, 11, cols, placement.gap, placement.offset);
      GpuMatrix out(DType::kF32, 11, cols, placement.gap, placement.offset);
      batch.UploadRandom(6);
      batch.Upload([&](int64_t r, int64_t c) { return r == 7 ? first.at(0, c) : batch.at(r, c); });
      ASSERT_EQ(LaunchLayerNorm(batch.matrix(), weights, weights, 1e-6f, out.matrix(), nullptr), cudaSuccess);
      out.Download();
      for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(out.bits(7, c), first_out.bits(0, c)) << cols << " " << c;
    }
  }
}

using ActivateTest = GpuTest;

double Activated(std::optional<Activation> activation, double x) {
  return activation.has_value() ? ReferenceActivation(*activation, x) : x;
}

TEST_F(ActivateTest, MatchesTheReferenceAlsoInPlaceAndWithABias) {
  ForAllCases([&](DType in, DType out_dtype, int64_t cols, const Placement& placement) {
    GpuMatrix x(in, 5, cols, placement.gap, placement.offset);
    x.UploadRandom(1, 5.0f);
    GpuMatrix bias(DType::kF32, 1, cols, 0, placement.offset);
    bias.UploadRandom(2);
    const auto* biases = reinterpret_cast<const float*>(bias.Row(0));
    std::vector<std::optional<Activation>> activations = {std::nullopt};
    activations.insert(activations.end(), std::begin(kAllActivations), std::end(kAllActivations));
    for (const std::optional<Activation> activation : activations) {
      for (const float* added : {static_cast<const float*>(nullptr), biases}) {
        if (!activation.has_value() && added == nullptr) continue;
        GpuMatrix out(out_dtype, 5, cols, placement.gap, placement.offset);
        ASSERT_EQ(added == nullptr ? LaunchActivate(x.matrix(), *activation, out.matrix(), nullptr)
                                   : LaunchBias(x.matrix(), added, activation, out.matrix(), nullptr),
                  cudaSuccess);
        out.Download();
        for (int64_t t = 0; t < 5; ++t) {
          for (int64_t c = 0; c < cols; ++c) {
            const double sum = x.at(t, c) + (added == nullptr ? 0.0 : static_cast<double>(bias.at(0, c)));
            ExpectElement(out, t, c, Activated(activation, sum), 1 + std::fabs(sum), 16);
          }
        }
        if (in != out_dtype) continue;
        GpuMatrix same(in, 5, cols, placement.gap, placement.offset);
        same.Upload([&](int64_t r, int64_t c) { return x.at(r, c); });
        ASSERT_EQ(LaunchBias(same.matrix(), added, activation, same.matrix(), nullptr), cudaSuccess);
        same.Download();
        for (int64_t t = 0; t < 5; ++t) {
          for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(same.bits(t, c), out.bits(t, c));
        }
      }
    }
  });
}

TEST_F(ActivateTest, FarFromZeroAndNan) {
  const float values[] = {-1e4f, 1e4f, -1e30f, std::numeric_limits<float>::quiet_NaN()};
  for (const Activation activation : kAllActivations) {
    GpuMatrix x(DType::kF32, 1, 4);
    x.Upload([&](int64_t, int64_t c) { return values[c]; });
    ASSERT_EQ(LaunchActivate(x.matrix(), activation, x.matrix(), nullptr), cudaSuccess);
    x.Download();
    EXPECT_EQ(x.at(0, 0), 0.0f);
    EXPECT_EQ(x.at(0, 1), 1e4f);
    EXPECT_EQ(x.at(0, 2), 0.0f);
    EXPECT_TRUE(std::isnan(x.at(0, 3)));
  }
}

using GatherTest = GpuTest;

TEST_F(GatherTest, MovesRowsBitForBit) {
  const std::vector<int32_t> chosen = {8, 0, 3, 3, 8};
  const GpuArray<int32_t> gpu_chosen(chosen);
  ForAllCases([&](DType dtype, DType other, int64_t cols, const Placement& placement) {
    if (dtype != other) return;
    GpuMatrix all(dtype, 9, cols, placement.gap, placement.offset);
    all.UploadRandom(1);
    for (const Placement& few_placement : kPlacements) {
      GpuMatrix few(dtype, 5, cols, few_placement.gap, few_placement.offset);
      ASSERT_EQ(LaunchGatherRows(all.matrix(), gpu_chosen.data(), few.matrix(), nullptr), cudaSuccess);
      few.Download();
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(few.bits(i, c), all.bits(chosen[i], c)) << i << " " << c;
      }
    }
  });
}

TEST_F(GatherTest, NoRowsAreNoLaunch) {
  GpuMatrix x(DType::kF32, 3, 8);
  const CudaMatrix none = {.data = nullptr, .dtype = DType::kF32, .rows = 0, .cols = 8, .stride = 8};
  EXPECT_EQ(LaunchGatherRows(x.matrix(), nullptr, none, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace runahead
