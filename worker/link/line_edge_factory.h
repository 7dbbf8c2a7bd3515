// Which edges a worker of the prefill line has, by what its device can do.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/base/device.h"
#include "kernels/cuda/peer_comm.h"
#include "worker/link/edge.h"
#include "worker/link/message_engine.h"

namespace runahead {

// Edges whose buffers are memory of `device`. They go over `engine`, through pinned host memory of at most
// `staging_bytes` each way where the host cannot read the device's; and from GPU to GPU where `peer_comms` is not
// null and the peer's fit. `faults` hears of frames that came damaged. All references outlive the factory.
std::unique_ptr<EdgeFactory> NewLineEdgeFactory(MessageEngine& engine, Device& device, size_t staging_bytes,
                                                PeerCommFactory* peer_comms, const FrameFaults& faults = {});

}  // namespace runahead
