#include "worker/link/line_edge_factory.h"

#include <utility>

#include "worker/link/device/chosen_edge.h"
#include "worker/link/device/device_edge.h"
#include "worker/link/message/message_edge.h"

namespace runahead {

std::unique_ptr<EdgeFactory> NewLineEdgeFactory(MessageEngine& engine, Device& device, size_t staging_bytes,
                                                PeerCommFactory* peer_comms, const FrameFaults& faults) {
  std::unique_ptr<EdgeStaging> staging;
  if (!device.host_reads_device_memory()) staging = std::make_unique<EdgeStaging>(device, staging_bytes);
  std::unique_ptr<EdgeFactory> edges = std::make_unique<MessageEdgeFactory>(engine, std::move(staging), faults);
  if (peer_comms == nullptr) return edges;
  return std::make_unique<ChosenEdgeFactory>(
      peer_comms->identity(), std::make_unique<DeviceEdgeFactory>(engine, *peer_comms, faults), std::move(edges));
}

}  // namespace runahead
