#include "worker/link/message_edge.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// Header of an edge frame. Its bytes are the message's.
struct FrameHeader {
  uint64_t job = 0;
  int32_t layer = 0;
  int32_t piece = 0;
};

struct ControlHeader {
  uint64_t job = 0;
  uint32_t frames = 0;
  uint16_t status = 0;
  uint16_t kind = 0;
};

template <typename T>
std::string Pack(const T& header) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}
template <typename T>
bool Unpack(std::string_view bytes, T& header) {
  if (bytes.size() != sizeof(header)) return false;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return true;
}

class MessageFrame final : public ArrivedFrame {
 public:
  explicit MessageFrame(std::shared_ptr<MessagePayload> payload) : payload_(std::move(payload)) {}
  size_t size() const override { return payload_->size(); }
  void Accept(BufferRef into, std::function<void(absl::Status)> done) override {
    payload_->Accept({std::move(into)}, std::move(done));
  }

 private:
  const std::shared_ptr<MessagePayload> payload_;
};

class MessageWire final : public EdgeWire {
 public:
  MessageWire(std::weak_ptr<EdgeDirectory> directory, PeerId peer)
      : directory_(std::move(directory)), peer_(std::move(peer)) {}
  void SendFrame(const FrameId& id, ConstBufferRef bytes, std::function<void(absl::Status)> done) override {
    const auto directory = directory_.lock();
    if (directory == nullptr) return done(absl::UnavailableError("the link has stopped"));
    directory->Send(peer_, MessageKind::kEdgeFrame, Pack(FrameHeader{id.job, id.layer, id.piece}), std::move(bytes),
                    std::move(done));
  }
  void SendControl(const EdgeControl& control) override {
    const auto directory = directory_.lock();
    if (directory == nullptr) return;
    const ControlHeader header{control.job, control.frames, static_cast<uint16_t>(control.status),
                               static_cast<uint16_t>(control.kind)};
    // When it fails the connection is dead, which the core hears of by itself.
    directory->Send(peer_, MessageKind::kEdgeControl, Pack(header), ConstBufferRef(), [](const absl::Status&) {});
  }

 private:
  const std::weak_ptr<EdgeDirectory> directory_;
  const PeerId peer_;
};

void OnFrame(EdgeDirectory& directory, const Message& message) {
  FrameHeader header;
  if (!Unpack(message.header, header)) return;
  directory.Deliver(message.from, [id = FrameId{header.job, header.layer, header.piece},
                                   frame = std::make_shared<MessageFrame>(message.payload)](EdgeEnd& end) mutable {
    end.OnFrame(id, std::move(frame));
  });
}

void OnControl(EdgeDirectory& directory, const Message& message) {
  ControlHeader header;
  if (!Unpack(message.header, header)) return;
  const EdgeControl control{static_cast<EdgeControl::Kind>(header.kind), header.job, header.frames,
                            static_cast<absl::StatusCode>(header.status)};
  directory.Deliver(message.from, [control](EdgeEnd& end) { end.core->OnControl(control); });
}

}  // namespace

MessageEdgeFactory::MessageEdgeFactory(MessageEngine& engine, std::unique_ptr<EdgeStaging> staging)
    : engine_(engine), staging_(std::move(staging)), directory_(std::make_shared<EdgeDirectory>(engine)) {
  engine_.SetHandler(MessageKind::kEdgeFrame,
                     [directory = directory_](const Message& message) { OnFrame(*directory, message); });
  engine_.SetHandler(MessageKind::kEdgeControl,
                     [directory = directory_](const Message& message) { OnControl(*directory, message); });
}

MessageEdgeFactory::~MessageEdgeFactory() {
  engine_.SetHandler(MessageKind::kEdgeFrame, nullptr);
  engine_.SetHandler(MessageKind::kEdgeControl, nullptr);
  directory_->Stop();
}

PeerId MessageEdgeFactory::self() const {
  return engine_.self();
}

absl::StatusOr<std::shared_ptr<Edge>> MessageEdgeFactory::Open(const PeerId& peer) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<EdgeEnd> end,
                            directory_->Open(peer, [this, &peer] { return MakeEnd(peer); }));
  return end->core;
}

std::shared_ptr<EdgeEnd> MessageEdgeFactory::MakeEnd(const PeerId& peer) {
  const std::string name = absl::StrCat("incarnation ", peer.incarnation);
  auto wire = std::make_shared<MessageWire>(directory_, peer);
  if (staging_ == nullptr) return std::make_shared<EdgeEnd>(EdgeCore::Create(std::move(wire), name));
  staging_->Prepare();
  auto staged = std::make_shared<StagedWire>(std::move(wire), *staging_);
  auto core = EdgeCore::Create(staged, name);
  staged->Bind(core);
  return std::make_shared<StagedEnd>(std::move(core), std::move(staged));
}

void MessageEdgeFactory::Close(const PeerId& peer) {
  directory_->Close(peer);
}

size_t MessageEdgeFactory::live_jobs(const PeerId& peer) const {
  return directory_->live_jobs(peer);
}

}  // namespace runahead
