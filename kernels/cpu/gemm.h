// Linear for many rows, on weights packed once: oneDNN's matrix product, one thread a call, spread over our own pool; in
// f32 on AVX2 one of our own (panel_gemm.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "kernels/base/memory.h"
#include "kernels/base/op_params.h"
#include "kernels/base/thread_pool.h"

namespace runahead {

// A weight matrix [n, k] (out features, in features) in the layout that its Gemm reads. Immutable.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  const BufferRef& memory() const { return memory_; }
  // The same matrix whose bytes lie in `memory`, as large as its own and at a multiple of 64 bytes.
  virtual std::unique_ptr<const PackedMatrix> At(const BufferRef& memory) const = 0;

 protected:
  BufferRef memory_;
};

// out[m, n] (+)= activation(x[m, k] * w[n, k]^T + bias[n]).
struct GemmArgs {
  const void* x = nullptr;  // in the dtype of the Gemm
  int64_t x_stride = 0;     // elements
  int64_t m = 0;
  void* out = nullptr;
  DType out_dtype = DType::kF32;  // f32; bf16 without accumulate
  int64_t out_stride = 0;         // elements
  bool accumulate = false;
  const float* bias = nullptr;                // [n], or null
  std::optional<Activation> activation = {};  // not with accumulate
};

// Keeps the primitives of the shapes it has met. Thread-safe.
class Gemm {
 public:
  // UNIMPLEMENTED where oneDNN cannot multiply in `dtype` (f32 or bf16) on this machine.
  static absl::StatusOr<std::unique_ptr<Gemm>> Make(DType dtype, ThreadPool& pool);
  virtual ~Gemm() = default;

  // read_row(r, out) writes the k floats of row r; it is called from several threads at once.
  virtual absl::StatusOr<std::unique_ptr<const PackedMatrix>> Pack(int64_t n, int64_t k,
                                                                   const std::function<void(int64_t, float*)>& read_row,
                                                                   Arena& arena) = 0;
  // Rows [begin, end) of w as a matrix of their own, in w's memory; null where its layout cannot be cut there.
  virtual std::unique_ptr<const PackedMatrix> Slice(const PackedMatrix& w, int64_t begin, int64_t end) const = 0;
  // Blocks until `out` is written. Runs on the calling thread and the pool.
  virtual void Run(const PackedMatrix& w, const GemmArgs& args) = 0;
};

}  // namespace runahead
