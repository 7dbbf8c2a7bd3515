// Linear on the forms that the CPU's weights have: packed for oneDNN, as stored (batch-invariant), or for 8 bits.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_weights.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/simd/kernels.h"

namespace runahead {

// Arguments are those of Device::Linear (kernels/base/device.h), checked, with a form that was loaded.
struct CpuLinear {
  const CpuKernels& kernels;
  ThreadPool& pool;
  Gemm& gemm;
  const Int8Kernels* int8 = nullptr;  // null: no weights have int8()

  // What Run sums up in: `out`, or f32 memory of its shape where it is rounded last. Errors: those of memory.
  static absl::StatusOr<Tensor> SumsFor(const CpuWeights& w, const LinearOptions& options, const MutTensor& out);
  // Blocks until `out` is written, by way of what SumsFor gave.
  void Run(const CpuWeights& w, const ConstTensor& x, const LinearOptions& options, const MutTensor& sums,
           const MutTensor& out) const;

 private:
  void RunStored(const StoredWeights& w, const ConstTensor& x, const LinearOptions& options, const MutTensor& sums,
                 const MutTensor& out) const;
  // Batch-invariant in any case.
  void RunInt8(const Int8Weights& w, const ConstTensor& x, const LinearOptions& options, const MutTensor& sums,
               const MutTensor& out) const;
  // out = activation(sums + bias).
  void Finish(const ConstTensor& sums, const LinearOptions& options, const MutTensor& out) const;
};

}  // namespace runahead
