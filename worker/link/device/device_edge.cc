#include "worker/link/device/device_edge.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/link/device/device_message.h"
#include "worker/link/device/device_wire.h"
#include "worker/link/edge_core.h"
#include "worker/link/edge_directory.h"

namespace runahead {
namespace {

// The edge as its user has it: the core, but Health also looks at the communicators.
class DeviceEdge final : public Edge {
 public:
  DeviceEdge(std::shared_ptr<EdgeCore> core, std::shared_ptr<DeviceWire> wire)
      : core_(std::move(core)), wire_(std::move(wire)) {}
  Event SendSummed(FrameId id, ConstBufferRef bytes, const Event& after, std::shared_ptr<const FrameSum> sum) override {
    return core_->SendSummed(id, std::move(bytes), after, std::move(sum));
  }
  Reception Recv(FrameId id, BufferRef into) override { return core_->Recv(id, std::move(into)); }
  Event Finish(JobId job) override { return core_->Finish(job); }
  void Drop(JobId job) override { core_->Drop(job); }
  absl::Status Health() const override {
    wire_->CheckComms();
    return core_->Health();
  }
  bool Opened() const override { return core_->Opened(); }

 private:
  const std::shared_ptr<EdgeCore> core_;
  const std::shared_ptr<DeviceWire> wire_;
};

class DeviceEnd final : public EdgeEnd {
 public:
  DeviceEnd(const std::shared_ptr<EdgeCore>& edge_core, std::shared_ptr<DeviceWire> device_wire)
      : EdgeEnd(edge_core), wire(std::move(device_wire)), edge(std::make_shared<DeviceEdge>(edge_core, wire)) {}
  void Die(const absl::Status& why) override { wire->Fail(why, /*tell_peer=*/false); }
  void AwaitEnd() override { wire->gone().Wait().IgnoreError(); }

  const std::shared_ptr<DeviceWire> wire;
  const std::shared_ptr<DeviceEdge> edge;
};

std::shared_ptr<EdgeEnd> MakeEnd(DeviceEdgeShared& shared, const PeerId& peer) {
  auto wire = std::make_shared<DeviceWire>(shared, peer);
  auto core = EdgeCore::Create(wire, Describe(peer.key()));
  wire->Bind(core);
  return std::make_shared<DeviceEnd>(core, std::move(wire));
}

DeviceWire& DeviceWireOf(EdgeEnd& end) {
  return *static_cast<DeviceEnd&>(end).wire;
}

}  // namespace

DeviceEdgeFactory::DeviceEdgeFactory(MessageEngine& engine, PeerCommFactory& comms, const FrameFaults& faults)
    : engine_(engine), shared_(std::make_unique<DeviceEdgeShared>(engine, comms, faults)) {
  engine_.SetHandler(MessageKind::kDeviceEdge, [directory = shared_->directory](const Message& message) {
    DeviceMessage unpacked;
    if (message.payload->size() > 0 || !Unpack(message.header, unpacked)) return;
    directory->Deliver(message.from, [unpacked](EdgeEnd& end) { DeviceWireOf(end).OnMessage(unpacked); });
  });
}

DeviceEdgeFactory::~DeviceEdgeFactory() {
  engine_.SetHandler(MessageKind::kDeviceEdge, nullptr);
  shared_->directory->Stop();
}

PeerId DeviceEdgeFactory::self() const {
  return engine_.self();
}

absl::StatusOr<std::shared_ptr<Edge>> DeviceEdgeFactory::Open(const PeerId& peer) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<EdgeEnd> end,
                            shared_->directory->Open(peer, [this, &peer] { return MakeEnd(*shared_, peer); }));
  DeviceWireOf(*end).Start();
  end->core->Announce();
  return static_cast<DeviceEnd&>(*end).edge;
}

void DeviceEdgeFactory::Close(const PeerId& peer) {
  shared_->directory->Close(peer);
}

size_t DeviceEdgeFactory::live_jobs(const PeerId& peer) const {
  return shared_->directory->live_jobs(peer);
}

}  // namespace runahead
