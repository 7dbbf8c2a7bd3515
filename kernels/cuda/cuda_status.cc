#include "kernels/cuda/cuda_status.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace runahead {

absl::Status CudaStatus(cudaError_t code, absl::string_view what) {
  if (code == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
  return code == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

void CudaMust(cudaError_t code, absl::string_view what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "the GPU failed: %s\n", CudaStatus(code, what).ToString().c_str());
  std::abort();
}

void UseGpu(int ordinal) {
  CudaMust(cudaSetDevice(ordinal), "choosing the GPU");
}

}  // namespace runahead
