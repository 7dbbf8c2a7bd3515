#include "worker/link/message/message_edge.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "worker/link/device_comms.h"
#include "worker/link/device_fit.h"

namespace runahead {
namespace {

// What the two ends write into their headers, as it lies in memory: both ends are of one byte order, as everywhere in
// the links.
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
std::string PackHeader(const T& header) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}
template <typename T>
bool UnpackHeader(std::string_view bytes, T& header) {
  if (bytes.size() != sizeof(header)) return false;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return true;
}

// A status that the engine gives, in words of the frame.
absl::Status OfFrame(const FrameId& id, const absl::Status& status) {
  return absl::IsDataLoss(status) ? DamagedFrame(id, kTransferAttempts) : status;
}

}  // namespace

// Thread-safe. What ends with its connection the engine ends.
class MessageEdgeFactory::Wire final : public EdgeWire {
 public:
  Wire(const MessageEdgeFactory& factory, PeerId peer, bool from_device_to_device)
      : directory_(factory.directory_), peer_(std::move(peer)), faults_(factory.options_.faults) {
    if (from_device_to_device) {
      const auto tell = [directory = directory_, to = peer_](std::string ids) {
        Post(directory, to, MessageKind::kDeviceEdge, std::move(ids), {}, [](const absl::Status&) {});
      };
      const auto fail = [this](const absl::Status& why) { End(why); };
      const bool draws_ids = factory.engine_.self().incarnation < peer_.incarnation;
      comms_ = std::make_shared<DeviceComms>(*factory.comms_, draws_ids, DeviceComms::Hooks{tell, fail});
    } else if (const auto& staging = factory.options_.staging) {
      staging->Prepare();
      sending_ = staging->sending;
      receiving_ = staging->receiving;
    }
  }
  // Before anything else. The core holds the wire.
  void Bind(const std::shared_ptr<EdgeCore>& core) { core_ = core; }

  void SendFrame(const FrameId& id, ConstBufferRef bytes, FrameSum sum,
                 std::function<void(absl::Status)> done) override {
    Outbound frame(std::move(bytes));
    frame.seed = SeedOf(id, frame.bytes.size);
    if (sum.kind == SumKind()) frame.sum = sum.value;
    frame.lane = sending_;
    frame.mover = comms_;
    frame.on_again = faults_.on_retry;
    Post(directory_, peer_, MessageKind::kEdgeFrame, PackHeader(FrameHeader{id.job, id.layer, id.piece}),
         std::move(frame), [id, done = std::move(done)](const absl::Status& status) { done(OfFrame(id, status)); });
  }

  void AcceptFrame(const FrameId& id, const ArrivedFrame& frame, BufferRef into, FrameDone done) override {
    Inbound what;
    what.into = {std::move(into)};
    what.seed = SeedOf(id, frame->size());
    what.lane = receiving_;
    what.mover = frame->size() > 0 ? comms_ : nullptr;
    what.on_damaged = [id, from = peer_.key(), on_corrupt = faults_.on_corrupt](int times) {
      LogDamagedFrame(id, times, from);
      if (on_corrupt) on_corrupt();
    };
    frame->Accept(std::move(what),
                  [id, frame, kind = SumKind(), done = std::move(done)](const absl::Status& status, const Came& came) {
                    if (status.ok()) frame->Answer(absl::StatusCode::kOk);
                    done(OfFrame(id, status), {came, {kind, came.sum}});
                  });
  }

  void SendControl(const EdgeControl& control) override {
    const ControlHeader header{control.job, control.frames, static_cast<uint16_t>(control.status),
                               static_cast<uint16_t>(control.kind)};
    // When it cannot be sent the connection is dead, which the core hears of by itself.
    Post(directory_, peer_, MessageKind::kEdgeControl, PackHeader(header), {}, [](const absl::Status&) {});
  }

  void Check() override {
    if (comms_ != nullptr) comms_->Check();
  }
  void Fail(const absl::Status& why) override {
    if (comms_ != nullptr) comms_->Fail(why);
  }
  void AwaitEnd() override {
    if (comms_ != nullptr) comms_->gone().Wait().IgnoreError();
  }

  // What the peer sent. Malformed headers are ignored, and their frames discarded.
  void OnFrame(std::string_view header, const std::shared_ptr<MessagePayload>& payload) {
    FrameHeader frame;
    const auto core = core_.lock();
    if (core == nullptr || !UnpackHeader(header, frame)) return;
    core->OnFrame({frame.job, frame.layer, frame.piece}, payload);
  }
  void OnControl(std::string_view header) {
    ControlHeader control;
    const auto core = core_.lock();
    if (core == nullptr || !UnpackHeader(header, control)) return;
    const auto kind = static_cast<EdgeControl::Kind>(control.kind);
    if (kind == EdgeControl::Kind::kOpened && comms_ != nullptr) comms_->OnOpened();
    core->OnControl({kind, control.job, control.frames, static_cast<absl::StatusCode>(control.status)});
  }
  void OnIds(std::string_view ids) {
    if (comms_ != nullptr) comms_->OnIds(ids);
  }

 private:
  static void Post(const std::weak_ptr<EdgeDirectory>& to, const PeerId& peer, MessageKind kind, std::string header,
                   Outbound bytes, std::function<void(absl::Status)> done) {
    const auto directory = to.lock();
    if (directory == nullptr) return done(absl::UnavailableError("the link has stopped"));
    directory->Send(peer, kind, std::move(header), std::move(bytes), std::move(done));
  }
  // Of what is sent over this edge.
  FrameSum::Kind SumKind() const { return comms_ != nullptr ? FrameSum::Kind::kDevice : FrameSum::Kind::kHost; }
  // A communicator failed: the core must know of the death before it hears of what the death ended.
  void End(const absl::Status& why) {
    if (const auto core = core_.lock()) core->Die(why);
    if (const auto directory = directory_.lock()) directory->Break(peer_, why);
  }

  const std::weak_ptr<EdgeDirectory> directory_;
  const PeerId peer_;
  const FrameFaults faults_;
  std::weak_ptr<EdgeCore> core_;
  std::shared_ptr<StagingLane> sending_, receiving_;  // null where frames are host memory
  std::shared_ptr<DeviceComms> comms_;                // null where frames go over the connection
};

MessageEdgeOptions EdgesOf(Device& device, size_t staging_bytes, PeerCommFactory* comms, FrameFaults faults,
                           const StagingMeters& meters) {
  MessageEdgeOptions options{nullptr, comms, std::move(faults)};
  if (!device.host_reads_device_memory()) {
    options.staging = std::make_unique<EdgeStaging>(device, staging_bytes, meters);
  }
  return options;
}

MessageEdgeFactory::MessageEdgeFactory(MessageEngine& engine, MessageEdgeOptions options)
    : engine_(engine),
      options_(std::move(options)),
      comms_(options_.comms == nullptr ? nullptr : std::make_unique<DeviceCommsShared>(*options_.comms)),
      directory_(std::make_shared<EdgeDirectory>(engine)) {
  const auto take = [this](MessageKind kind, auto what) {
    engine_.SetHandler(kind, [directory = directory_, what](const Message& message) {
      directory->Deliver(message.from, [what, header = std::string(message.header), payload = message.payload](
                                           EdgeWire& wire) { what(static_cast<Wire&>(wire), header, payload); });
    });
  };
  using Payload = std::shared_ptr<MessagePayload>;
  take(MessageKind::kEdgeFrame,
       [](Wire& wire, const std::string& header, const Payload& payload) { wire.OnFrame(header, payload); });
  take(MessageKind::kEdgeControl,
       [](Wire& wire, const std::string& header, const Payload&) { wire.OnControl(header); });
  take(MessageKind::kDeviceEdge, [](Wire& wire, const std::string& header, const Payload&) { wire.OnIds(header); });
}

MessageEdgeFactory::~MessageEdgeFactory() {
  for (const MessageKind kind : {MessageKind::kEdgeFrame, MessageKind::kEdgeControl, MessageKind::kDeviceEdge}) {
    engine_.SetHandler(kind, nullptr);
  }
  directory_->Stop();
}

PeerId MessageEdgeFactory::self() const {
  PeerId self = engine_.self();
  if (options_.comms != nullptr) self.device_link = options_.comms->identity();
  return self;
}

absl::StatusOr<std::shared_ptr<Edge>> MessageEdgeFactory::Open(const PeerId& peer) {
  const absl::Status fits = options_.comms == nullptr ? absl::FailedPreconditionError("there is no link between GPUs")
                                                      : DeviceLinkFits(self().device_link, peer.device_link);
  bool made = false;
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<EdgeCore> edge, directory_->Open(peer, [&] {
    made = true;
    auto wire = std::make_shared<Wire>(*this, peer, fits.ok());
    auto core = EdgeCore::Create(wire, Describe(peer.key()));
    wire->Bind(core);
    return EdgeEnd{std::move(core), std::move(wire)};
  }));
  if (made && options_.comms != nullptr) {
    LogInfo("link", "the edge to ", Describe(peer.key()),
            fits.ok() ? " goes from GPU to GPU" : " goes through host memory: ", fits.message());
  }
  edge->Announce();
  return edge;
}

void MessageEdgeFactory::Close(const PeerId& peer) {
  directory_->Close(peer);
}

size_t MessageEdgeFactory::live_jobs(const PeerId& peer) const {
  return directory_->live_jobs(peer);
}

}  // namespace runahead
