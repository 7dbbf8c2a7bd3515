#include "kernels/cuda/cuda_copies.h"

namespace runahead {

void CudaCopies::Add(const void* from, void* to, size_t bytes) {
  from_.push_back(from);
  to_.push_back(to);
  sizes_.push_back(bytes);
}

cudaError_t CudaCopies::Run(cudaStream_t stream) const {
  if (sizes_.size() > 1) {
    // The stream has waited for whoever wrote the bytes.
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
    const cudaError_t code =
        cudaMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), sizes_.size(), &attributes, &first, 1, stream);
    if (code != cudaErrorNotSupported && code != cudaErrorCallRequiresNewerDriver) return code;
    cudaGetLastError();
  }
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const cudaError_t code = cudaMemcpyAsync(to_[i], from_[i], sizes_[i], cudaMemcpyDefault, stream);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace runahead
