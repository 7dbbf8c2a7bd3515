// Rows of any dtype to and from f32, for ops that compute in f32.
#pragma once

#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/base/tensor.h"

namespace runahead {

inline std::byte* RowBytes(const Tensor& tensor, int64_t row) {
  return tensor.ref.data() + row * tensor.stride * DTypeSize(tensor.dtype);
}

// Elements [begin, begin + n) of a row.
inline void LoadFloats(const std::byte* row, DType dtype, int64_t begin, int64_t n, float* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, row + begin * sizeof(float), n * sizeof(float));
  } else if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) to[i] = ToFloat(reinterpret_cast<const BFloat16*>(row)[begin + i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = ToFloat(reinterpret_cast<const Float16*>(row)[begin + i]);
  }
}

inline void StoreFloats(const float* from, DType dtype, int64_t begin, int64_t n, std::byte* row) {
  if (dtype == DType::kF32) {
    std::memcpy(row + begin * sizeof(float), from, n * sizeof(float));
  } else if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<BFloat16*>(row)[begin + i] = ToBFloat16(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<Float16*>(row)[begin + i] = ToFloat16(from[i]);
  }
}

// change(begin, n, values) on pieces of a row of `count` elements as f32, from one row to another (or the same).
template <typename Change>
void ChangeRow(const std::byte* from, DType from_dtype, int64_t count, std::byte* to, DType to_dtype,
               const Change& change) {
  constexpr int64_t kPiece = 512;  // stays in the first-level cache
  float values[kPiece];
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t n = count - begin < kPiece ? count - begin : kPiece;
    LoadFloats(from, from_dtype, begin, n, values);
    change(begin, n, values);
    StoreFloats(values, to_dtype, begin, n, to);
  }
}

}  // namespace runahead
