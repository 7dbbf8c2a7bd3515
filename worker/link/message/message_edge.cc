#include "worker/link/message/message_edge.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/link/message/message_wire.h"

namespace runahead {
namespace {

MessageWire& MessageWireOf(EdgeEnd& end) {
  return *static_cast<MessageEnd&>(end).wire;
}

// What comes in messages of each kind.
constexpr MessageKind kKinds[] = {MessageKind::kEdgeFrame, MessageKind::kEdgeControl, MessageKind::kEdgeOffer,
                                  MessageKind::kEdgeBytes};

void Take(MessageKind kind, EdgeEnd& end, const std::string& header, const std::shared_ptr<MessagePayload>& payload) {
  MessageWire& wire = MessageWireOf(end);
  if (kind == MessageKind::kEdgeFrame) {
    wire.OnFrame(header, payload);
  } else if (kind == MessageKind::kEdgeControl) {
    wire.OnControl(header);
  } else if (kind == MessageKind::kEdgeOffer) {
    wire.OnOffer(header);
  } else {
    wire.OnBytes(header, payload);
  }
}

}  // namespace

MessageEdgeFactory::MessageEdgeFactory(MessageEngine& engine, std::unique_ptr<EdgeStaging> staging, FrameFaults faults)
    : engine_(engine),
      shared_(new MessageEdgeShared{std::move(staging), std::move(faults), {}}),
      directory_(std::make_shared<EdgeDirectory>(engine)) {
  for (const MessageKind kind : kKinds) {
    engine_.SetHandler(kind, [directory = directory_, kind](const Message& message) {
      directory->Deliver(message.from, [kind, header = std::string(message.header),
                                        payload = message.payload](EdgeEnd& end) { Take(kind, end, header, payload); });
    });
  }
}

MessageEdgeFactory::~MessageEdgeFactory() {
  for (const MessageKind kind : kKinds) engine_.SetHandler(kind, nullptr);
  directory_->Stop();
}

PeerId MessageEdgeFactory::self() const {
  return engine_.self();
}

absl::StatusOr<std::shared_ptr<Edge>> MessageEdgeFactory::Open(const PeerId& peer) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<EdgeEnd> end,
                            directory_->Open(peer, [this, &peer] { return MakeEnd(peer); }));
  end->core->Announce();
  return end->core;
}

std::shared_ptr<EdgeEnd> MessageEdgeFactory::MakeEnd(const PeerId& peer) {
  if (shared_->staging != nullptr) shared_->staging->Prepare();
  auto wire = std::make_shared<MessageWire>(directory_, peer, *shared_);
  auto core = EdgeCore::Create(wire, Describe(peer.key()));
  wire->Bind(core);
  return std::make_shared<MessageEnd>(std::move(core), std::move(wire));
}

void MessageEdgeFactory::Close(const PeerId& peer) {
  directory_->Close(peer);
}

size_t MessageEdgeFactory::live_jobs(const PeerId& peer) const {
  return directory_->live_jobs(peer);
}

}  // namespace runahead
