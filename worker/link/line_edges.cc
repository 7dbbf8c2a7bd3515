#include "worker/link/line_edges.h"

#include <utility>

#include "worker/link/chosen_edge.h"
#include "worker/link/device_edge.h"
#include "worker/link/message_edge.h"
#include "worker/link/staged_edge.h"

namespace runahead {

std::unique_ptr<EdgeFactory> NewLineEdges(MessageEngine& engine, Device& device, size_t staging_bytes,
                                          PeerCommFactory* device_links) {
  std::unique_ptr<EdgeFactory> edges = std::make_unique<MessageEdgeFactory>(engine);
  if (!device.host_reads_device_memory()) {
    edges = std::make_unique<StagedEdgeFactory>(std::move(edges), device, staging_bytes);
  }
  if (device_links == nullptr) return edges;
  return std::make_unique<ChosenEdgeFactory>(
      device_links->identity(), std::make_unique<DeviceEdgeFactory>(engine, *device_links), std::move(edges));
}

}  // namespace runahead
