// The rows of a matrix that several tensors make up, as forms of weights take them in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/weights.h"

namespace runahead {

// Consecutive rows of one type.
struct TypedRows {
  WeightType type = WeightType::kF32;
  int64_t first_row = 0;               // of the matrix
  std::vector<const std::byte*> rows;  // where each is in the file, top to bottom
  int64_t count() const { return static_cast<int64_t>(rows.size()); }
};

// All rows of a source, top to bottom: runs of one type that follow each other are one. Valid as long as its memory.
std::vector<TypedRows> RowsByType(const WeightSource& source);

}  // namespace runahead
