#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/matrix_cases.h"

namespace runahead {
namespace {

using EmbedTest = GpuTest;
using RmsNormTest = GpuTest;
using RopeStoreTest = GpuTest;
using SwiGluTest = GpuTest;

TEST_F(EmbedTest, CopiesAndConvertsRows) {
  const std::vector<int32_t> ids = {4, 0, 6, 6, 1};
  const GpuArray<int32_t> gpu_ids(ids);
  ForAllCases([&](DType in, DType out_dtype, int64_t cols, const Placement& placement) {
    GpuMatrix table(in, 7, cols, placement.gap, placement.offset);
    table.UploadRandom(1);
    GpuMatrix out(out_dtype, 5, cols, placement.gap, placement.offset);
    ASSERT_EQ(LaunchEmbed(table.matrix(), gpu_ids.data(), out.matrix(), nullptr), cudaSuccess);
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

TEST_F(SwiGluTest, MatchesTheReference) {
  ForAllCases([&](DType in, DType out_dtype, int64_t cols, const Placement& placement) {
    GpuMatrix gate_up(in, 5, 2 * cols, placement.gap, placement.offset);
    gate_up.UploadRandom(7, 9.0f);
    GpuMatrix out(out_dtype, 5, cols, placement.gap, placement.offset);
    ASSERT_EQ(LaunchSwiGlu(gate_up.matrix(), out.matrix(), nullptr), cudaSuccess);
    out.Download();
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = 0; c < cols; ++c) {
        const double gate = gate_up.at(t, c);
        const double want = gate / (1 + std::exp(-gate)) * gate_up.at(t, cols + c);
        ExpectElement(out, t, c, want, std::fabs(want), 16);
      }
    }
  });
}

TEST_F(SwiGluTest, GatesFarFromZeroAreFinite) {
  GpuMatrix gate_up(DType::kF32, 1, 4);
  const float values[] = {-200.0f, 200.0f, 3.0f, 4.0f};
  gate_up.Upload([&](int64_t, int64_t c) { return values[c]; });
  GpuMatrix out(DType::kF32, 1, 2);
  ASSERT_EQ(LaunchSwiGlu(gate_up.matrix(), out.matrix(), nullptr), cudaSuccess);
  out.Download();
  EXPECT_EQ(out.at(0, 0), 0.0f);
  EXPECT_EQ(out.at(0, 1), 800.0f);
}

struct RopeCase {
  int heads;
  int kv_heads;
  int head_dim;
  DType q_dtype;
  DType kv_dtype;
  Placement placement;
};

// What RopeStore makes of column `col` of a row of qkv, and what its error is in proportion to.
struct Rotated {
  double value;
  double magnitude;
};
Rotated RotatedAt(const GpuMatrix& qkv, const GpuMatrix& rotation, const RopeCase& shape, int64_t row, int64_t position,
                  int64_t col) {
  const int64_t half = shape.head_dim / 2;
  const double x = qkv.at(row, col);
  if (col >= (shape.heads + shape.kv_heads) * shape.head_dim) return {x, 0};
  const int64_t d = col % shape.head_dim;
  const double cosine = rotation.at(position, d % half);
  const double sine = rotation.at(position, half + d % half);
  const double other = d < half ? -qkv.at(row, col + half) : qkv.at(row, col - half);
  return {x * cosine + other * sine, std::fabs(x * cosine) + std::fabs(other * sine)};
}

void ExpectRopeStore(const RopeCase& shape) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kPositions = 40;
  const int64_t q_cols = shape.heads * shape.head_dim;
  const int64_t kv_cols = 2 * shape.kv_heads * shape.head_dim;
  const Placement& placement = shape.placement;
  GpuMatrix qkv(DType::kF32, kRows, q_cols + kv_cols, placement.gap, placement.offset);
  GpuMatrix rotation(DType::kF32, kPositions, shape.head_dim, 0, placement.offset);
  GpuMatrix q(shape.q_dtype, kRows, q_cols, placement.gap, placement.offset);
  GpuMatrix kv(shape.kv_dtype, 2 * kRows, kv_cols, placement.gap, placement.offset);
  qkv.UploadRandom(8);
  rotation.UploadRandom(9);
  const std::vector<int32_t> positions = {0, 17, 3, 39, 17};
  std::vector<std::byte*> kv_rows;  // every other row of kv, from the last one back
  for (int64_t t = 0; t < kRows; ++t) kv_rows.push_back(kv.Row(2 * (kRows - 1 - t)));
  const GpuArray<int32_t> gpu_positions(positions);
  const GpuArray<std::byte*> gpu_rows(kv_rows);
  const RopeStoreArgs args = {.qkv = qkv.matrix(),
                              .rotation = reinterpret_cast<const float*>(rotation.Row(0)),
                              .positions = gpu_positions.data(),
                              .heads = shape.heads,
                              .kv_heads = shape.kv_heads,
                              .head_dim = shape.head_dim,
                              .q = q.matrix(),
                              .kv_rows = gpu_rows.data(),
                              .kv_dtype = shape.kv_dtype};
  ASSERT_EQ(LaunchRopeStore(args, nullptr), cudaSuccess);
  q.Download();
  kv.Download();
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t c = 0; c < q_cols + kv_cols; ++c) {
      const Rotated want = RotatedAt(qkv, rotation, shape, t, positions[t], c);
      if (c < q_cols) {
        ExpectElement(q, t, c, want.value, want.magnitude, 4);
      } else {
        ExpectElement(kv, 2 * (kRows - 1 - t), c - q_cols, want.value, want.magnitude, 4);
      }
    }
    for (int64_t c = 0; c < kv_cols; ++c) ASSERT_TRUE(std::isnan(kv.at(2 * t + 1, c))) << "a row of nobody, " << c;
  }
}

TEST_F(RopeStoreTest, MatchesTheReference) {
  for (const int head_dim : {2, 10, 16, 48, 64, 80, 128}) {
    for (const DType q_dtype : kAllDTypes) {
      for (const DType kv_dtype : kAllDTypes) {
        for (const Placement& placement : kPlacements) {
          SCOPED_TRACE(CaseName(q_dtype, kv_dtype, head_dim, placement));
          ExpectRopeStore({6, 2, head_dim, q_dtype, kv_dtype, placement});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  ExpectRopeStore({1, 1, 16, DType::kF32, DType::kF32, {0, 0}});
}

TEST_F(EmbedTest, NothingIsLaunchedForZeroRows) {
  GpuMatrix empty(DType::kF32, 0, 8);
  GpuMatrix table(DType::kF32, 2, 8);
  EXPECT_EQ(LaunchEmbed(table.matrix(), nullptr, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchRmsNorm(empty.matrix(), nullptr, 1.0f, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchSwiGlu(empty.matrix(), empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchRopeStore({.qkv = empty.matrix(), .q = empty.matrix()}, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchTopK(empty.matrix(), 1, empty.matrix(), empty.matrix(), empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchDequantize(WeightType::kQ4_0, nullptr, empty.matrix(), nullptr), cudaSuccess);
  EXPECT_EQ(LaunchPlainAttention({}, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace runahead
