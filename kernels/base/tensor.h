// A two-dimensional, row-major view of a buffer: what every op takes.
#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/dtype.h"

namespace runahead {

// [rows, cols] elements of `dtype`; consecutive rows are `stride` elements apart (stride >= cols).
struct Tensor {
  BufferRef ref;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  template <typename T>
  T* row(int64_t r) const {
    return reinterpret_cast<T*>(ref.data()) + r * stride;
  }
  // Rows [begin, begin + count) as a view of the same memory.
  Tensor Rows(int64_t begin, int64_t count) const {
    RUNAHEAD_CHECK(begin >= 0 && begin + count <= rows);
    if (count == 0) return {ref.Slice(0, 0), dtype, 0, cols, stride};
    const size_t element = DTypeSize(dtype);
    return {ref.Slice(begin * stride * element, ((count - 1) * stride + cols) * element), dtype, count, cols, stride};
  }
  // Columns [begin, begin + count) of all rows as a view of the same memory, which keeps the stride.
  Tensor Cols(int64_t begin, int64_t count) const {
    RUNAHEAD_CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
    if (rows == 0 || count == 0) return {ref.Slice(0, 0), dtype, rows, count, stride};
    const size_t element = DTypeSize(dtype);
    return {ref.Slice(begin * element, ((rows - 1) * stride + count) * element), dtype, rows, count, stride};
  }
};

using ConstTensor = Tensor;
using MutTensor = Tensor;

// A dense view of the first rows * cols elements of `ref`.
inline Tensor MakeTensor(const BufferRef& ref, DType dtype, int64_t rows, int64_t cols) {
  return {ref.Slice(0, rows * cols * DTypeSize(dtype)), dtype, rows, cols, cols};
}

}  // namespace runahead
