// Random weights into a GGUF.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/gguf_builder.h"
#include "tests/testing/quantize.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {

// Steele and others' SplitMix64: small, seeded, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

  // About N(0, 1): the sum of four 16-bit numbers, so that no library's logarithm decides about the bits.
  float Normal() {
    const uint64_t bits = Next();
    const int sum = static_cast<int>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    constexpr float kDeviation = 37837.23f;  // sqrt(4 * 65536^2 / 12)
    return (static_cast<float>(sum) - 2 * 65535.0f) / kDeviation;
  }

 private:
  uint64_t state_;
};

// Adds tensors with weights drawn in the order of the calls.
class WeightWriter final : public TensorSink {
 public:
  WeightWriter(GgufBuilder& file, uint64_t seed) : file_(file), random_(seed) {}

  void Matrix(const std::string& name, WeightType type, int64_t columns, int64_t rows, float gain) override {
    const float deviation = gain / std::sqrt(static_cast<float>(columns));
    std::vector<float> row(static_cast<size_t>(columns));
    std::string data;
    data.reserve(WeightRowBytes(type, columns) * static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (float& value : row) value = deviation * random_.Normal();
      data += Quantize(type, row);
    }
    file_.AddTensor(name, type, {columns, rows}, std::move(data));
  }

  // Norm weights, near but not at 1, so that forgetting one is seen.
  void Norm(const std::string& name, int64_t size) override { Vector(name, size, 1, 0.1f); }
  // Biases, near but not at 0; so small that what a model says still depends on its input.
  void Bias(const std::string& name, int64_t size) override { Vector(name, size, 0, 0.02f); }
  void Values(const std::string& name, const std::vector<float>& values) override {
    file_.AddTensor(name, WeightType::kF32, {static_cast<int64_t>(values.size())}, Quantize(WeightType::kF32, values));
  }

 private:
  void Vector(const std::string& name, int64_t size, float mean, float deviation) {
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = mean + deviation * random_.Normal();
    Values(name, values);
  }

  GgufBuilder& file_;
  Random random_;
};

}  // namespace runahead
