// Links between GPUs by NCCL.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/cuda/peer_comm.h"

namespace runahead {

// Communicators between buffers of `device`, which is one of NewCudaDevice and outlives them. UNAVAILABLE when NCCL or
// CUDA cannot say what they are.
absl::StatusOr<std::unique_ptr<PeerCommFactory>> NewNcclFactory(Device& device);

}  // namespace runahead
