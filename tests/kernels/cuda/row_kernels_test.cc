#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/matrix_cases.h"
#include "tests/testing/reference_activation.h"

namespace runahead {
namespace {

using EmbedTest = GpuTest;
using RmsNormTest = GpuTest;
using HeadNormTest = GpuTest;
using GatedActivateTest = GpuTest;
using RopeTest = GpuTest;
using StoreQkvTest = GpuTest;

TEST_F(EmbedTest, CopiesAndConvertsRows) {
  const std::vector<int32_t> ids = {4, 0, 6, 6, 1};
  const GpuArray<int32_t> gpu_ids(ids);
  ForAllCases([&](DType in, DType out_dtype, int64_t cols, const Placement& placement) {
    GpuMatrix table(in, 7, cols, placement.gap, placement.offset);
    table.UploadRandom(1);
    GpuMatrix out(out_dtype, 5, cols, placement.gap, placement.offset);
    ASSERT_EQ(LaunchEmbed(table.matrix(), gpu_ids.data(), false, out.matrix(), nullptr), cudaSuccess);
    out.Download();
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(out.bits(t, c), ElementBits(out_dtype, table.at(ids[t], c))) << t << " " << c;
      }
    }
  });
}

TEST_F(RmsNormTest, MatchesTheReference) {
  constexpr float kEps = 1e-5f;
  ForAllCases([&](DType in, DType out_dtype, int64_t cols, const Placement& placement) {
    if (in != DType::kF32) return;
    GpuMatrix x(in, 9, cols, placement.gap, placement.offset);
    x.UploadRandom(2, 3.0f);
    GpuMatrix weight(DType::kF32, 1, cols, 0, placement.offset);
    weight.UploadRandom(3);
    GpuMatrix out(out_dtype, 9, cols, placement.gap, placement.offset);
    const auto* weights = reinterpret_cast<const float*>(weight.Row(0));
    ASSERT_EQ(LaunchRmsNorm(x.matrix(), weights, kEps, out.matrix(), nullptr), cudaSuccess);
    out.Download();
    for (int64_t t = 0; t < 9; ++t) {
      double sum = 0;
      for (int64_t c = 0; c < cols; ++c) sum += static_cast<double>(x.at(t, c)) * x.at(t, c);
      const double factor = 1 / std::sqrt(sum / static_cast<double>(cols) + kEps);
      for (int64_t c = 0; c < cols; ++c) {
        const double want = x.at(t, c) * factor * weight.at(0, c);
        ExpectElement(out, t, c, want, std::fabs(want), 16);
      }
    }
  });
}

// Wherever a row lies and whatever is beside it, the sum is taken in one order.
TEST_F(RmsNormTest, ARowIsBitwiseTheSameAnywhere) {
  for (const int64_t cols : {129, 1024, 4097}) {
    GpuMatrix weight(DType::kF32, 1, cols);
    weight.UploadRandom(4);
    const auto* weights = reinterpret_cast<const float*>(weight.Row(0));
    GpuMatrix first(DType::kF32, 1, cols, 3);
    GpuMatrix first_out(DType::kF32, 1, cols);
    first.UploadRandom(5);
    ASSERT_EQ(LaunchRmsNorm(first.matrix(), weights, 1e-6f, first_out.matrix(), nullptr), cudaSuccess);
    first_out.Download();
    for (const Placement& placement : kPlacements) {
      GpuMatrix batch(DType::kF32, 11, cols, placement.gap, placement.offset);
      GpuMatrix out(DType::kF32, 11, cols, placement.gap, placement.offset);
      batch.UploadRandom(6);
      batch.Upload([&](int64_t r, int64_t c) { return r == 7 ? first.at(0, c) : batch.at(r, c); });
      ASSERT_EQ(LaunchRmsNorm(batch.matrix(), weights, 1e-6f, out.matrix(), nullptr), cudaSuccess);
      out.Download();
      for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(out.bits(7, c), first_out.bits(0, c)) << cols << " " << c;
    }
  }
}

TEST_F(HeadNormTest, EveryHeadIsBitwiseARowOfRmsNorm) {
  constexpr int64_t kRows = 3, kHeads = 5;
  for (const int head_dim : {1, 6, 64, 129, 1500}) {
    for (const Placement& placement : kPlacements) {
      GpuMatrix x(DType::kF32, kRows, kHeads * head_dim, placement.gap, placement.offset);
      x.UploadRandom(2, 3.0f);
      GpuMatrix rows(DType::kF32, kRows * kHeads, head_dim), normed(DType::kF32, kRows * kHeads, head_dim);
      rows.Upload([&](int64_t r, int64_t c) { return x.at(r / kHeads, r % kHeads * head_dim + c); });
      GpuMatrix weight(DType::kF32, 1, head_dim, 0, placement.offset);
      weight.UploadRandom(3);
      const auto* weights = reinterpret_cast<const float*>(weight.Row(0));
      ASSERT_EQ(LaunchRmsNorm(rows.matrix(), weights, 1e-5f, normed.matrix(), nullptr), cudaSuccess);
      ASSERT_EQ(LaunchHeadNorm(x.matrix(), head_dim, weights, 1e-5f, nullptr), cudaSuccess);
      normed.Download();
      x.Download();
      for (int64_t r = 0; r < kRows * kHeads; ++r) {
        for (int64_t c = 0; c < head_dim; ++c) {
          ASSERT_EQ(x.bits(r / kHeads, r % kHeads * head_dim + c), normed.bits(r, c)) << head_dim << " " << r;
        }
      }
    }
  }
}

TEST_F(GatedActivateTest, MatchesTheReference) {
  ForAllCases([&](DType in, DType out_dtype, int64_t cols, const Placement& placement) {
    GpuMatrix gate_up(in, 5, 2 * cols, placement.gap, placement.offset);
    gate_up.UploadRandom(7, 9.0f);
    for (const Activation activation : kAllActivations) {
      GpuMatrix out(out_dtype, 5, cols, placement.gap, placement.offset);
      ASSERT_EQ(LaunchGatedActivate(gate_up.matrix(), activation, out.matrix(), nullptr), cudaSuccess);
      out.Download();
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
          const double gate = gate_up.at(t, c), up = gate_up.at(t, cols + c);
          // Where an activation is small beside its argument, it is right to some last places of the argument only.
          ExpectElement(out, t, c, ReferenceActivation(activation, gate) * up, std::fabs(gate * up), 16);
        }
      }
    }
  });
}

TEST_F(GatedActivateTest, GatesFarFromZeroAreFinite) {
  const float values[] = {-200.0f, 200.0f, 3.0f, 4.0f};
  for (const Activation activation : kAllActivations) {
    GpuMatrix gate_up(DType::kF32, 1, 4);
    gate_up.Upload([&](int64_t, int64_t c) { return values[c]; });
    GpuMatrix out(DType::kF32, 1, 2);
    ASSERT_EQ(LaunchGatedActivate(gate_up.matrix(), activation, out.matrix(), nullptr), cudaSuccess);
    out.Download();
    EXPECT_EQ(out.at(0, 0), 0.0f);
    EXPECT_EQ(out.at(0, 1), 800.0f);
  }
}

struct RopeCase {
  int64_t heads;
  int head_dim;
  int64_t rotated;  // elements of each head
  bool interleaved;
  Placement placement;
};

// What Rope makes of column `col` of a row, and what its error is in proportion to.
struct Rotated {
  double value;
  double magnitude;
};
Rotated RotatedAt(const GpuMatrix& x, const GpuMatrix& table, const RopeCase& shape, int64_t row, int64_t position,
                  int64_t col) {
  const int64_t d = col % shape.head_dim, half = shape.rotated / 2;
  const double own = x.at(row, col);
  if (d >= shape.rotated) return {own, 0};
  const int64_t pair = shape.interleaved ? d / 2 : d % half, apart = shape.interleaved ? 1 : half;
  const bool first = shape.interleaved ? d % 2 == 0 : d < half;
  const double cosine = table.at(position, pair), sine = table.at(position, half + pair);
  const double other = first ? -x.at(row, col + apart) : x.at(row, col - apart);
  return {own * cosine + other * sine, std::fabs(own * cosine) + std::fabs(other * sine)};
}

void ExpectRope(const RopeCase& shape) {
  constexpr int64_t kRows = 5;
  const int64_t cols = shape.heads * shape.head_dim;
  GpuMatrix x(DType::kF32, kRows, cols, shape.placement.gap, shape.placement.offset);
  GpuMatrix before(DType::kF32, kRows, cols);
  GpuMatrix table(DType::kF32, 40, shape.rotated, shape.placement.gap, shape.placement.offset);
  x.UploadRandom(8);
  before.Upload([&](int64_t r, int64_t c) { return x.at(r, c); });
  table.UploadRandom(9);
  const std::vector<int32_t> positions = {0, 17, 3, 39, 17};
  const GpuArray<int32_t> gpu_positions(positions);
  ASSERT_EQ(LaunchRope(x.matrix(), shape.head_dim, table.matrix(), shape.interleaved, gpu_positions.data(), nullptr),
            cudaSuccess);
  x.Download();
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t c = 0; c < cols; ++c) {
      const Rotated want = RotatedAt(before, table, shape, t, positions[t], c);
      ExpectElement(x, t, c, want.value, want.magnitude, 4);
    }
  }
}

TEST_F(RopeTest, MatchesTheReference) {
  struct {
    int head_dim;
    int64_t rotated;
  } const sizes[] = {{2, 2}, {7, 4}, {10, 10}, {16, 16}, {48, 34}, {64, 16}, {80, 80}, {128, 128}};
  for (const auto& [head_dim, rotated] : sizes) {
    for (const bool interleaved : {false, true}) {
      for (const Placement& placement : kPlacements) {
        SCOPED_TRACE(testing::Message() << head_dim << ", " << rotated << " rotated, interleaved " << interleaved);
        ExpectRope({8, head_dim, rotated, interleaved, placement});
        if (HasFatalFailure()) return;
      }
    }
  }
  ExpectRope({1, 16, 16, false, {0, 0}});
}

TEST_F(StoreQkvTest, RoundsRowsToWhereTheyGo) {
  constexpr int64_t kRows = 5;
  for (const int64_t head_dim : {2, 10, 16, 64}) {
    for (const DType q_dtype : kAllDTypes) {
      for (const DType kv_dtype : kAllDTypes) {
        for (const Placement& placement : kPlacements) {
          SCOPED_TRACE(CaseName(q_dtype, kv_dtype, head_dim, placement));
          for (const int64_t q_cols : {6 * head_dim, 3 * head_dim, int64_t{0}}) {
            const int64_t kv_cols = 4 * head_dim;
            GpuMatrix qkv(DType::kF32, kRows, q_cols + kv_cols, placement.gap, placement.offset);
            GpuMatrix q(q_dtype, kRows, q_cols, placement.gap, placement.offset);
            GpuMatrix kv(kv_dtype, 2 * kRows, kv_cols, 0, placement.offset);
            qkv.UploadRandom(8);
            std::vector<int64_t> kv_rows;  // every other row of kv, from the last one back
            for (int64_t t = 0; t < kRows; ++t) kv_rows.push_back(2 * (kRows - 1 - t));
            const GpuArray<int64_t> gpu_rows(kv_rows);
            const CudaMatrix to = q_cols > 0 ? q.matrix() : CudaMatrix{};
            ASSERT_EQ(LaunchStoreQkv(qkv.matrix(), to, kv.Row(0), gpu_rows.data(), kv_dtype, nullptr), cudaSuccess);
            q.Download();
            kv.Download();
            for (int64_t t = 0; t < kRows; ++t) {
              for (int64_t c = 0; c < q_cols; ++c) ASSERT_EQ(q.bits(t, c), ElementBits(q_dtype, qkv.at(t, c)));
              for (int64_t c = 0; c < kv_cols; ++c) {
                ASSERT_EQ(kv.bits(2 * (kRows - 1 - t), c), ElementBits(kv_dtype, qkv.at(t, q_cols + c)));
                ASSERT_TRUE(std::isnan(kv.at(2 * t + 1, c))) << "a row of nobody, " << c;
              }
            }
          }
        }
      }
    }
  }
}

TEST_F(EmbedTest, NothingIsLaunchedForZeroRows) {
  GpuMatrix empty(DType::kF32, 0, 8);
  GpuMatrix table(DType::kF32, 2, 8);
  EXPECT_EQ(LaunchEmbed(table.matrix(), nullptr, false, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchRmsNorm(empty.matrix(), nullptr, 1.0f, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchHeadNorm(empty.matrix(), 4, nullptr, 1.0f, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchRope(empty.matrix(), 4, table.matrix(), false, nullptr, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchStoreQkv(empty.matrix(), empty.matrix(), nullptr, nullptr, DType::kF32, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchGatedActivate(empty.matrix(), Activation::kSilu, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchTopK(empty.matrix(), 1, empty.matrix(), empty.matrix(), empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchDequantize(WeightType::kQ4_0, nullptr, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchPlainAttention({}, nullptr, 0, 0, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchPlainPieces({}, {}, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchMergePieces(empty.matrix(), nullptr, 2, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace runahead
