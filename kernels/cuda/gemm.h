// Matrix products by cuBLASLt behind a cache of plans.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"

namespace runahead {

// out[t,n] (+)= activation(sum_k x[t,k] * w[n,k] + bias[n]): all that decides which kernel does it.
struct GemmShape {
  int64_t m = 0;  // rows of x and out
  int64_t n = 0;
  int64_t k = 0;
  // Of the whole matrix, of which w is n rows; 0: w is all of it. Batch-invariant kernels are chosen for the whole.
  int64_t w_rows = 0;
  DType dtype = DType::kF32;  // of x and w; sums are f32 in any case, and never TF32
  DType out_dtype = DType::kF32;
  int64_t x_stride = 0;  // elements; w is dense
  int64_t out_stride = 0;
  int alignment = 16;     // bytes, of x, bias and out; no kernel asks for more than 16
  int w_alignment = 256;  // bytes
  bool accumulate = false;
  bool bias = false;  // f32
  std::optional<Activation> activation = {};
  bool batch_invariant = false;
  bool in_blocks = false;  // LinearOptions::blocks: one kernel for every m, too, but chosen for many rows

  friend bool operator==(const GemmShape&, const GemmShape&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const GemmShape& s) {
    return H::combine(std::move(h), s.m, s.n, s.k, s.w_rows, s.w_alignment, s.dtype, s.out_dtype, s.x_stride,
                      s.out_stride, s.alignment, s.accumulate, s.bias, s.activation, s.batch_invariant, s.in_blocks);
  }
};

struct GemmOperands {
  const void* x = nullptr;
  const void* w = nullptr;
  const float* bias = nullptr;
  void* out = nullptr;
  void* workspace = nullptr;  // workspace_bytes of the plan
};

// Where bias and activation are not fused, the product alone is computed and then finished. They are applied to
// unrounded sums: these are f32, in out where that is f32, else dense in SumBytes(shape) of workspace (0: in out).
GemmShape ProductAlone(const GemmShape& shape);
size_t SumBytes(const GemmShape& shape);
cudaError_t FinishGemm(const GemmShape& shape, const GemmOperands& operands, void* sums, cudaStream_t stream);

// How one shape is computed. Immutable; any thread, any stream.
class GemmPlan {
 public:
  explicit GemmPlan(const GemmShape& shape) : shape_(shape) {}
  virtual ~GemmPlan() = default;
  const GemmShape& shape() const { return shape_; }
  virtual size_t workspace_bytes() const = 0;
  virtual cudaError_t Run(const GemmOperands& operands, cudaStream_t stream) const = 0;

 protected:
  const GemmShape shape_;
};

// What makes plans: cuBLASLt, or plain loops where CUDA is emulated. Called under the cache's lock.
class GemmPlanner {
 public:
  virtual ~GemmPlanner() = default;
  // Under batch_invariant, and in_blocks, a row of out is bitwise the same for every m: the planner may choose by n, k
  // and dtypes only, and takes nothing that splits K. INTERNAL when nothing computes this shape.
  virtual absl::StatusOr<std::shared_ptr<const GemmPlan>> Plan(const GemmShape& shape) = 0;
};

// Plans by shape: making one costs some 0.1 ms, finding it again well under a microsecond. Thread-safe.
class GemmPlans {
 public:
  // Shapes kept. A prefill worker sees a last piece of any length: when they are too many all are forgotten.
  static constexpr size_t kMost = 4096;
  explicit GemmPlans(std::unique_ptr<GemmPlanner> planner) : planner_(std::move(planner)) {}
  absl::StatusOr<std::shared_ptr<const GemmPlan>> Find(const GemmShape& shape) RUNAHEAD_EXCLUDES(mu_);

 private:
  Mutex mu_;
  const std::unique_ptr<GemmPlanner> planner_ RUNAHEAD_PT_GUARDED_BY(mu_);
  absl::flat_hash_map<GemmShape, std::shared_ptr<const GemmPlan>> plans_ RUNAHEAD_GUARDED_BY(mu_);
};

// cuBLASLt on the current GPU.
absl::StatusOr<std::unique_ptr<GemmPlanner>> NewGemmPlanner();

}  // namespace runahead
