// Weights that stay as stored: what Embed and the batch-invariant Linear read.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "kernels/base/weights.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/stored_form.h"

namespace runahead {

// A copy of all rows in the kernels' layout. Immutable.
class StoredWeights {
 public:
  // Errors: those of CheckWeightSource (kernels/base/checks.h), and of the arena.
  static absl::StatusOr<StoredWeights> Make(const WeightSource& source, Arena& arena, ThreadPool& pool);

  const BufferRef& memory() const { return memory_; }
  // The same rows where their bytes lie in `memory`, as large as memory() and at a multiple of 64 bytes.
  StoredWeights At(const BufferRef& memory) const;

  // out[0..cols) = row `row`, each element the f32 nearest to its exact value.
  void DequantizeRow(const CpuKernels& kernels, int64_t row, float* out) const;

  // out[m, n] (+)= sum_k x[m, k] * w[begin_row + n, k]: args as for CpuKernels::matvec, with rows over all segments,
  // but columns past cols need not be readable. An element is bitwise the same whatever m, the rows and the number of
  // threads.
  void Matvec(const CpuKernels& kernels, ThreadPool& pool, MatvecArgs args) const;

 private:
  // Consecutive rows of one type, top to bottom.
  struct Segment {
    int64_t first_row;
    const StoredForm* form;
    StoredView view;
    int64_t groups() const { return form->Groups(view); }
  };
  struct Task {
    size_t segment;
    int64_t begin, end;          // groups
    int64_t begin_row, end_row;  // of all
  };
  void MakeTasks();

  std::vector<Segment> segments_;
  std::vector<Task> tasks_;
  BufferRef memory_;
};

}  // namespace runahead
