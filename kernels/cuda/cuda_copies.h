// Copies that are given to CUDA in one call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace runahead {

class CudaCopies {
 public:
  void Add(const void* from, void* to, size_t bytes);
  bool empty() const { return sizes_.empty(); }
  // Enqueues them, in any order. Where the driver has no call for many, one after the other.
  cudaError_t Run(cudaStream_t stream) const;

 private:
  std::vector<const void*> from_;
  std::vector<void*> to_;
  std::vector<size_t> sizes_;
};

}  // namespace runahead
