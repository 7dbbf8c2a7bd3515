// Weight matrices: where they come from, and what a device makes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace runahead {

// How elements are stored in a model file. The Q types are blocks of 32 elements of one row:
// Q8_0 {f16 d; int8 q[32]}: w = d*q.  Q4_0 {f16 d; 4-bit q[32]}: w = d*(q-8).  Q4_1 {f16 d, m; 4-bit q}: w = d*q+m.
// Q5_0 {f16 d; u32 high bits; 4-bit low}: w = d*(q-16).  Q5_1 {f16 d, m; u32 high; 4-bit low}: w = d*q+m.
// Nibbles: byte i of a block holds element i in its low half and element i+16 in its high half.
enum class WeightType { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1 };

// Bytes of `cols` elements of one row (cols is a multiple of 32 for the Q types).
size_t WeightRowBytes(WeightType type, int64_t cols);

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
  int64_t rows() const {
    int64_t sum = 0;
    for (const WeightRows& run : runs) sum += run.rows;
    return sum;
  }
};

// A matrix on a device, in the forms that its ops need. Immutable, shared between threads.
class Weights {
 public:
  virtual ~Weights() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 protected:
  Weights(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  int64_t rows_;
  int64_t cols_;
};

}  // namespace runahead
