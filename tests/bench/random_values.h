// Normally distributed values, as benchmarks fill memory with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"

namespace runahead {

inline std::vector<std::byte> RandomValues(DType dtype, int64_t count, float deviation, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  const size_t size = DTypeSize(dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * size);
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(generator);
    const uint16_t bits = dtype == DType::kBF16 ? ToBFloat16(value).bits : ToFloat16(value).bits;
    std::memcpy(&bytes[static_cast<size_t>(i) * size], dtype == DType::kF32 ? static_cast<const void*>(&value) : &bits,
                size);
  }
  return bytes;
}

}  // namespace runahead
