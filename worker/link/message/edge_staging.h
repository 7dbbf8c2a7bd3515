// The staging of all edges of a process whose device's memory the host cannot read.
#pragma once

#include <memory>

#include "kernels/base/device.h"
#include "worker/link/staging_lane.h"

namespace runahead {

// What the lanes get done; null: nobody asks.
struct StagingMeters {
  std::shared_ptr<ProgressMeter> sending = nullptr, receiving = nullptr;
};

// One bounded lane for what is sent, one for what is received; each has a thread and a stream of its own. Made before
// the edges, ended after them. Room is only held by frames that both sides have begun to move, so any size suffices,
// whatever the order in which frames are sent and asked for.
struct EdgeStaging {
  // `bytes` of pinned memory for each direction, allocated by Prepare. `device` outlives it.
  EdgeStaging(Device& device, size_t bytes, const StagingMeters& meters = {})
      : sending(StagingLane::Create(device, "send", bytes, meters.sending)),
        receiving(StagingLane::Create(device, "receive", bytes, meters.receiving)) {}
  ~EdgeStaging() {
    sending->Stop();
    receiving->Stop();
  }
  void Prepare() {
    sending->Prepare();
    receiving->Prepare();
  }
  const std::shared_ptr<StagingLane> sending, receiving;
};

}  // namespace runahead
