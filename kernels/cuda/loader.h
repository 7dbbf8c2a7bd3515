// Opens the CUDA plugin, where there is one.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/plugin.h"

namespace runahead {

// The plugin of this build, opened once and never closed (CUDA cannot be unloaded). `path`: the file; empty: the one
// beside the running binary, or in ../lib. Errors: NOT_FOUND, no such file; FAILED_PRECONDITION, it is of another build;
// UNAVAILABLE, it cannot be loaded here, with the loader's reason (a library that is missing). Thread-safe.
absl::StatusOr<const CudaPlugin*> OpenCudaPlugin(const std::string& path);

}  // namespace runahead
