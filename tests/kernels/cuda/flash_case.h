// What tests of the flash kernels have in common: shapes, random queries and KV, and what attention over them comes to.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/gpu_memory.h"

namespace runahead {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct FlashShape {
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  DType dtype = DType::kBF16;

  int64_t cols() const { return static_cast<int64_t>(heads) * head_dim; }
  int64_t kv_cols() const { return 2 * static_cast<int64_t>(kv_heads) * head_dim; }
  int64_t kv_row_bytes() const { return kv_cols() * 2; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
};

// Uniform in [-1, 1), a function of what it is for.
inline float RandomValue(uint32_t seed, int64_t row, int64_t col) {
  auto bits = static_cast<uint32_t>(seed * 0x9e3779b9u + row * 0x85ebca6bu + col * 0xc2b2ae35u);
  for (const int shift : {16, 15, 13}) bits = (bits ^ (bits >> shift)) * 0x2c1b3c6du;
  return static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f;
}
inline float Query(uint32_t seed, int64_t position, int64_t col) {
  return 3 * RandomValue(seed, position, col);
}

// KV rows [first, end) of a sequence; from `length` on, what is in memory by chance.
inline std::unique_ptr<GpuMatrix> KvRows(const FlashShape& shape, uint32_t seed, int64_t first, int64_t end,
                                         int64_t length, float behind) {
  auto rows = std::make_unique<GpuMatrix>(shape.dtype, end - first, shape.kv_cols());
  rows->Upload(
      [&](int64_t r, int64_t c) { return first + r < length ? RandomValue(seed + 1000, first + r, c) : behind; });
  return rows;
}

// What the queries of a sequence made of `seed` come to, in double.
class FlashReference {
 public:
  // `window`: how many positions up to its own a query sees; 0: all.
  FlashReference(const FlashShape& shape, uint32_t seed, int64_t length, int64_t window = 0)
      : shape_(shape), seed_(seed), window_(window) {
    for (int64_t p = 0; p < length; ++p) {
      for (int64_t c = 0; c < shape.kv_cols(); ++c) {
        kv_.push_back(Rounded(shape.dtype, RandomValue(seed + 1000, p, c)));
      }
    }
  }

  // Compares the query at `position`. Weights and values are rounded to the dtype on the way, and so is the result.
  void Expect(int64_t position, const GpuMatrix& out, int64_t row) const {
    for (int64_t head = 0; head < shape_.heads; ++head) {
      const std::vector<double> weights = Weights(position, head);
      const float* values = Kv(0, shape_.kv_heads + KvHead(head));
      for (int64_t d = 0; d < shape_.head_dim; ++d) {
        double want = 0, magnitude = 0;
        for (int64_t p = 0; p <= position; ++p) {
          const double value = weights[p] * values[p * shape_.kv_cols() + d];
          want += value;
          magnitude += std::fabs(value);
        }
        ASSERT_NEAR(out.at(row, head * shape_.head_dim + d), want, 2 * Epsilon(shape_.dtype) * magnitude + 1e-5)
            << "position " << position << ", head " << head << ", element " << d;
      }
    }
  }

 private:
  int64_t KvHead(int64_t head) const { return head / (shape_.heads / shape_.kv_heads); }
  const float* Kv(int64_t position, int64_t head) const {
    return &kv_[position * shape_.kv_cols() + head * shape_.head_dim];
  }
  std::vector<double> Weights(int64_t position, int64_t head) const {
    std::vector<float> q;
    for (int64_t d = 0; d < shape_.head_dim; ++d) {
      q.push_back(Rounded(shape_.dtype, Query(seed_, position, head * shape_.head_dim + d)));
    }
    std::vector<double> weights;
    for (int64_t p = 0; p <= position; ++p) {
      weights.push_back(std::inner_product(q.begin(), q.end(), Kv(p, KvHead(head)), 0.0) * shape_.scale());
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (int64_t p = 0; p <= position; ++p) {
      weights[p] = window_ > 0 && p <= position - window_ ? 0 : std::exp(weights[p] - max);
      sum += weights[p];
    }
    for (double& weight : weights) weight /= sum;
    return weights;
  }

  const FlashShape shape_;
  const uint32_t seed_;
  const int64_t window_;
  std::vector<float> kv_;
};

inline std::vector<FlashShape> AllShapes() {
  std::vector<FlashShape> shapes;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 128, 256}) {
      for (const auto& [heads, kv_heads] : {std::pair(3, 3), std::pair(9, 3), std::pair(8, 2), std::pair(8, 1)}) {
        shapes.push_back({heads, kv_heads, head_dim, dtype});
      }
    }
  }
  return shapes;
}

inline std::string Name(const FlashShape& shape) {
  return std::string(DTypeName(shape.dtype)) + ", " + std::to_string(shape.heads) + " heads, " +
         std::to_string(shape.kv_heads) + " KV heads of " + std::to_string(shape.head_dim);
}

}  // namespace runahead
