// Weights that are multiplied in 8 bits: one form for prefill, decode and Embed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/memory.h"
#include "kernels/base/op_params.h"
#include "kernels/base/thread_pool.h"
#include "kernels/base/weights.h"
#include "kernels/cpu/form_place.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/simd/kernels.h"

namespace runahead {

// out[m, n] (+)= activation(sum_k x[m, k] * w[first_row + n, k] + bias[n]), n < cols.
struct Int8Product {
  const float* x = nullptr;
  int64_t x_stride = 0;  // elements
  int64_t m = 0;
  float* out = nullptr;
  int64_t out_stride = 0;  // elements
  int64_t first_row = 0;
  int64_t cols = 0;
  bool accumulate = false;
  const float* bias = nullptr;                // [cols], or null
  std::optional<Activation> activation = {};  // not with accumulate
};

// A copy of all rows in the layout of Int8View. Immutable.
class Int8Weights {
 public:
  // Whether all of a source's runs have a layout: quantised types only.
  static bool Takes(const WeightSource& source);
  // Of a source that it takes. Errors: those of CheckWeightSource (kernels/base/checks.h), and of the place.
  static absl::StatusOr<Int8Weights> Make(const WeightSource& source, const FormPlace& place, ThreadPool& pool);

  const BufferRef& memory() const { return memory_; }
  // The same rows where their bytes lie in `memory`, as large as memory() and at a multiple of 64 bytes.
  Int8Weights At(const BufferRef& memory) const;
  // What of memory() a product reads that begins at `first_row` and ends with the last row.
  BufferRef MemoryFrom(int64_t first_row) const;

  // out[0..cols) = row `row`, each element the f32 nearest to its exact value.
  void DequantizeRow(int64_t row, float* out) const;
  // Blocks until `out` is written. An element is bitwise the same whatever m, the rows, the pool's size and the
  // instruction set are.
  void Multiply(const CpuKernels& rows, const Int8Kernels& kernels, ThreadPool& pool, const Int8Product& args) const;

 private:
  // Consecutive rows of one type, top to bottom.
  struct Segment {
    int64_t first_row = 0;
    Int8View view;
    size_t group_bytes() const { return Int8BlockAt(Int8LayoutOf(view.type), view.blocks); }
    int64_t groups() const { return (view.rows + kInt8GroupRows - 1) / kInt8GroupRows; }
  };
  // Groups [begin, end) of a segment, which hold some of the rows that are asked for.
  struct Task {
    const Segment* segment;
    int64_t begin, end;
  };
  std::vector<Task> TasksOf(const Int8Product& args) const;
  const Segment& SegmentOf(int64_t row) const;

  int64_t cols_ = 0;
  std::vector<Segment> segments_;
  BufferRef memory_;
};

}  // namespace runahead
