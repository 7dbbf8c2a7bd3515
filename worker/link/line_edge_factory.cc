#include "worker/link/line_edge_factory.h"

#include <utility>

#include "worker/link/device/chosen_edge.h"
#include "worker/link/device/device_edge.h"
#include "worker/link/message/message_edge.h"

namespace runahead {

std::unique_ptr<EdgeFactory> NewLineEdges(MessageEngine& engine, Device& device, size_t staging_bytes,
                                          PeerCommFactory* device_links) {
  std::unique_ptr<EdgeStaging> staging;
  if (!device.host_reads_device_memory()) staging = std::make_unique<EdgeStaging>(device, staging_bytes);
  std::unique_ptr<EdgeFactory> edges = std::make_unique<MessageEdgeFactory>(engine, std::move(staging));
  if (device_links == nullptr) return edges;
  return std::make_unique<ChosenEdgeFactory>(
      device_links->identity(), std::make_unique<DeviceEdgeFactory>(engine, *device_links), std::move(edges));
}

}  // namespace runahead
