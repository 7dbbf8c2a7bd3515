// What loading a model's weights takes, known before any is loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "kernels/base/dtype.h"
#include "kernels/base/weights.h"

namespace runahead {

struct LoadPlan {
  // One that a device would load: of one tensor, or of several.
  struct Matrix {
    int64_t rows = 0, cols = 0;
    size_t stored_bytes = 0;  // in the file
    bool quantised = true;    // all of its rows are
    bool of_layer = true;     // in the forms that it is loaded for; else as stored, whatever these are
    int64_t elements() const { return rows * cols; }
  };
  std::vector<Matrix> matrices;
  int64_t floats = 0;                     // of vectors and of tables of rotation, which are kept in f32
  absl::flat_hash_set<std::string> read;  // names of tensors

  int64_t elements() const;  // of all matrices
};

// What the weights take about: without what kernels' layouts round up. `uses` are WeightUse bits without kUseStreamed.
// On a CPU that computes in `compute`, or multiplies quantised weights in 8 bits.
WeightBytes BytesOnCpu(const LoadPlan& plan, DType compute, bool int8, unsigned uses);
// On a GPU that computes in `compute`, whatever the uses.
WeightBytes BytesOnGpu(const LoadPlan& plan, DType compute);

}  // namespace runahead
