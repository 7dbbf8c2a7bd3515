// Weight matrices: where they come from, and what a device makes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/weight_type.h"

namespace runahead {

// `rows` consecutive rows, dense, as in the file.
struct WeightRows {
  WeightType type = WeightType::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0;
};

// A matrix [rows, cols] (out features, in features) made of runs of rows, top to bottom: one tensor, several tensors
// stacked (Q over K over V), or a permutation of rows (a run each). `owner` keeps the memory alive while it is loaded.
struct WeightSource {
  std::shared_ptr<const void> owner;
  int64_t cols = 0;
  std::vector<WeightRows> runs;
  // Row numbers, rising, where a Linear of some of the rows may begin and end, besides the first and the last.
  std::vector<int64_t> cuts = {};
  // What no other matrix of the model is called, by which processes share it; empty: they do not.
  std::string name = {};
  int64_t rows() const {
    int64_t sum = 0;
    for (const WeightRows& run : runs) sum += run.rows;
    return sum;
  }
};

// Bytes of matrices on a device, by form: rows as stored, which decode and lookups read; what prefill multiplies with;
// and the one form for both that is multiplied in 8 bits.
struct WeightBytes {
  size_t stored = 0;
  size_t packed = 0;
  size_t int8 = 0;
  size_t total() const { return stored + packed + int8; }
  WeightBytes& operator+=(const WeightBytes& other) {
    stored += other.stored;
    packed += other.packed;
    int8 += other.int8;
    return *this;
  }
};

// A matrix on a device, in the forms that its ops need. Immutable, shared between threads.
class Weights {
 public:
  virtual ~Weights() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // Of the memory that its forms took when it was loaded.
  const WeightBytes& bytes() const { return bytes_; }
  // Of weights that were loaded with kUseStreamed: all forms, in host memory from which they are copied to where ops
  // take them (Device::WeightsAt). Without a buffer where they are on the device.
  const ConstBufferRef& home() const { return home_; }
  // What of home() a Linear reads that begins at `first_row` and ends with the last row, not under batch_invariant: so
  // that it may be brought first.
  virtual ConstBufferRef HomeFrom(int64_t first_row) const = 0;

 protected:
  Weights(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  int64_t rows_;
  int64_t cols_;
  WeightBytes bytes_;
  ConstBufferRef home_;
};

}  // namespace runahead
