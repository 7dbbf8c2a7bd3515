// The communicators of a GPU's edges by NCCL, as the worker asks for them.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/cuda/peer_comm.h"

namespace runahead {

// Communicators between buffers of `device`, which is one of NewCudaDevice and outlives them. UNAVAILABLE when NCCL or
// CUDA cannot say what they are.
absl::StatusOr<std::unique_ptr<PeerCommFactory>> NewNcclPeerCommFactory(Device& device);

}  // namespace runahead
