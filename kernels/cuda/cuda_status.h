// What CUDA's codes become here.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace runahead {

// For what may fail by its arguments or for want of memory. OK for cudaSuccess; RESOURCE_EXHAUSTED for want of memory,
// INTERNAL else, naming `what` and CUDA's own words.
absl::Status CudaStatus(cudaError_t code, absl::string_view what);

// For what fails only when the GPU or its driver does: prints both and ends the process, as Device's contract says.
void CudaMust(cudaError_t code, absl::string_view what);

// Makes this thread's calls be of GPU `ordinal`. A thread that has not said so speaks to GPU 0, and the first call
// there takes some hundred MB of it: whatever calls CUDA says it before.
void UseGpu(int ordinal);

}  // namespace runahead
