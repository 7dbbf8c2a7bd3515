// A matrix product of one thread for each element.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/base/dtype.h"

namespace runahead {

// out[t,n] (+)= sum_k x[t,k] * w[n,k]; w is dense.
struct PlainGemmArgs {
  const void* x = nullptr;
  const void* w = nullptr;
  void* out = nullptr;
  int64_t m = 0, n = 0, k = 0, x_stride = 0, out_stride = 0;
  DType dtype = DType::kF32;
  DType out_dtype = DType::kF32;
  bool accumulate = false;
};
cudaError_t LaunchPlainGemm(const PlainGemmArgs& args, cudaStream_t stream);

}  // namespace runahead
