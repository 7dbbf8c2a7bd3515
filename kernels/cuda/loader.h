// Opens the CUDA plugin, where there is one and a GPU for it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/plugin.h"

namespace runahead {

// OK when this machine has a driver and a GPU that this process may use; else UNAVAILABLE says what is missing. Asks
// the driver only, so that a machine without one does not pay for loading the plugin and CUDA's libraries. Like
// OpenCudaPlugin it sets CUDA_MODULE_LOADING to EAGER where it is not set: call it before other threads read the
// environment.
absl::Status ProbeGpu();

// The plugin of this build, opened once and never closed (CUDA cannot be unloaded). `path`: the file; empty: the one
// beside the running binary, or in ../lib or ../bin. Errors: NOT_FOUND, no such file; FAILED_PRECONDITION, it is of
// another build; UNAVAILABLE, it cannot be loaded here, with the loader's reason (a library that is missing).
// Thread-safe.
absl::StatusOr<const CudaPlugin*> OpenCudaPlugin(const std::string& path = "");

}  // namespace runahead
