// What makes two launches the same but for the contents of the arrays they read.
#pragma once

#include <string>
#include <type_traits>

#include "kernels/cuda/kernels.h"

namespace runahead {

// Bytes that are equal for launches that a replay may take for each other: the op, its pointers, shapes and scalars.
class OpKey {
 public:
  template <typename... Parts>
  explicit OpKey(std::string_view op, const Parts&... parts) : bytes_(op) {
    (Add(parts), ...);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  requires std::is_scalar_v<T>
  void Add(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void Add(const CudaMatrix& matrix) {
    Add(matrix.data);
    Add(matrix.dtype);
    Add(matrix.rows);
    Add(matrix.cols);
    Add(matrix.stride);
  }

  std::string bytes_;
};

}  // namespace runahead
