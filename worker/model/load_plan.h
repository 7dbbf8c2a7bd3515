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
    // Rows of one type that follow each other; those behind them are of another.
    struct Run {
      WeightType type;
      int64_t rows;
    };
    std::string name;  // those of its tensors
    int64_t cols = 0;
    std::vector<Run> runs;  // top to bottom
    bool of_layer = true;   // in the forms that it is loaded for; else as stored, whatever these are

    void Add(WeightType type, int64_t rows);
    int64_t elements() const;
    size_t file_bytes() const;
    // All of its rows have one: only then a CPU multiplies it in 8 bits.
    bool has_int8_form() const;
    bool quantised() const;  // some of its rows are
  };
  std::vector<Matrix> matrices;
  int64_t floats = 0;                     // of vectors and of tables of rotation, which are kept in f32
  absl::flat_hash_set<std::string> read;  // names of tensors

  int64_t elements() const;  // of all matrices
};

// What the weights take; about, where they are packed, as layouts of products round up. `uses` are WeightUse bits
// without kUseStreamed. On a CPU that computes in `compute`, or multiplies quantised weights in 8 bits.
WeightBytes BytesOnCpu(const LoadPlan& plan, DType compute, bool int8, unsigned uses);
// On a GPU that computes in `compute`, whatever the uses.
WeightBytes BytesOnGpu(const LoadPlan& plan, DType compute);

// What a CPU that multiplies in 8 bits does not, though part of it is quantised: which matrices, and what that costs.
// Empty: none.
std::string LeftOutOfInt8(const LoadPlan& plan, unsigned uses);

}  // namespace runahead
