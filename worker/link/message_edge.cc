#include "worker/link/message_edge.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/logging.h"

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

// Messages kept for a peer before this side has opened its edge, and how many such peers. Both sides open when the line
// forms, so few messages wait, and not for long.
constexpr size_t kStashedMessages = 4096;
constexpr size_t kStashedPeers = 64;

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

}  // namespace

// What engine callbacks share with the factory; outlives it while callbacks are under way.
class MessageEdgeFactory::State : public std::enable_shared_from_this<MessageEdgeFactory::State> {
 public:
  explicit State(MessageEngine& engine) : engine_(&engine) {}

  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) RUNAHEAD_EXCLUDES(mu_);
  void OnFrame(const Message& message);
  void OnControl(const Message& message);
  // The edge to `peer` is dead, and stays so.
  void Bury(const PeerId& peer, const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);
  // Kills all edges; nothing calls the engine afterwards. Returns their peers.
  std::vector<PeerId> Stop() RUNAHEAD_EXCLUDES(mu_);
  void Send(const PeerId& peer, MessageKind kind, std::string header, ConstBufferRef bytes, MessageEngine::Done done)
      RUNAHEAD_EXCLUDES(mu_);
  size_t live_jobs(const PeerId& peer) const RUNAHEAD_EXCLUDES(mu_);

 private:
  class Wire;
  using Delivery = std::function<void(EdgeCore&)>;
  struct Side {
    PeerId peer;
    std::shared_ptr<EdgeCore> core;  // null: not opened here
    std::deque<Delivery> stash;      // until it is opened
  };

  void Deliver(uint64_t from, Delivery delivery) RUNAHEAD_EXCLUDES(mu_);

  MessageEngine* const engine_;
  mutable Mutex mu_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, Side> sides_ RUNAHEAD_GUARDED_BY(mu_);  // by incarnation
  std::deque<uint64_t> unopened_ RUNAHEAD_GUARDED_BY(mu_);
};

class MessageEdgeFactory::State::Wire final : public EdgeWire {
 public:
  Wire(std::weak_ptr<State> state, PeerId peer) : state_(std::move(state)), peer_(std::move(peer)) {}
  void SendFrame(const FrameId& id, ConstBufferRef bytes, std::function<void(absl::Status)> done) override {
    const auto state = state_.lock();
    if (state == nullptr) return done(absl::UnavailableError("the link has stopped"));
    state->Send(peer_, MessageKind::kEdgeFrame, Pack(FrameHeader{id.job, id.layer, id.piece}), std::move(bytes),
                std::move(done));
  }
  void SendControl(const EdgeControl& control) override {
    const auto state = state_.lock();
    if (state == nullptr) return;
    const ControlHeader header{control.job, control.frames, static_cast<uint16_t>(control.status),
                               static_cast<uint16_t>(control.kind)};
    // When it fails the connection is dead, which the core hears of by itself.
    state->Send(peer_, MessageKind::kEdgeControl, Pack(header), ConstBufferRef(), [](const absl::Status&) {});
  }

 private:
  const std::weak_ptr<State> state_;
  const PeerId peer_;
};

absl::StatusOr<std::shared_ptr<Edge>> MessageEdgeFactory::State::Open(const PeerId& peer) {
  std::shared_ptr<EdgeCore> core;
  std::deque<Delivery> stash;
  {
    MutexLock lock(mu_);
    if (stopped_) return absl::UnavailableError("the link has stopped");
    Side& side = sides_[peer.incarnation];
    if (side.core != nullptr) {
      if (!(side.peer == peer)) {
        return absl::InvalidArgumentError(
            absl::StrCat("incarnation ", peer.incarnation, " is known at another link address"));
      }
      RUNAHEAD_RETURN_IF_ERROR(side.core->Health());
      return side.core;
    }
    side.peer = peer;
    side.core = core = EdgeCore::Create(std::make_shared<Wire>(weak_from_this(), peer),
                                        absl::StrCat("incarnation ", peer.incarnation));
    stash.swap(side.stash);
    engine_->Connect(peer, [state = shared_from_this(), peer](const absl::Status& why) { state->Bury(peer, why); });
  }
  for (const Delivery& delivery : stash) delivery(*core);
  return core;
}

void MessageEdgeFactory::State::Deliver(uint64_t from, Delivery delivery) {
  std::shared_ptr<EdgeCore> core;
  Side evicted;  // destroyed without the lock
  {
    MutexLock lock(mu_);
    if (stopped_) return;
    const auto [found, is_new] = sides_.try_emplace(from);
    core = found->second.core;
    if (core == nullptr) {
      if (is_new) unopened_.push_back(from);
      if (found->second.stash.size() >= kStashedMessages) {
        LogWarning("link", "incarnation ", from, " floods an edge that is not open here; its message is discarded");
        return;
      }
      found->second.stash.push_back(std::move(delivery));
      if (unopened_.size() <= kStashedPeers) return;
      const auto oldest = sides_.find(unopened_.front());
      unopened_.pop_front();
      if (oldest == sides_.end() || oldest->second.core != nullptr) return;
      evicted = std::move(oldest->second);
      sides_.erase(oldest);
      return;
    }
  }
  delivery(*core);
}

void MessageEdgeFactory::State::OnFrame(const Message& message) {
  FrameHeader header;
  if (!Unpack(message.header, header)) return;
  Deliver(message.from, [id = FrameId{header.job, header.layer, header.piece},
                         frame = std::make_shared<MessageFrame>(message.payload)](EdgeCore& core) mutable {
    core.OnFrame(id, std::move(frame));
  });
}

void MessageEdgeFactory::State::OnControl(const Message& message) {
  ControlHeader header;
  if (!Unpack(message.header, header)) return;
  const EdgeControl control{static_cast<EdgeControl::Kind>(header.kind), header.job, header.frames,
                            static_cast<absl::StatusCode>(header.status)};
  Deliver(message.from, [control](EdgeCore& core) { core.OnControl(control); });
}

void MessageEdgeFactory::State::Bury(const PeerId& peer, const absl::Status& why) {
  std::shared_ptr<EdgeCore> core;
  {
    MutexLock lock(mu_);
    const auto found = sides_.find(peer.incarnation);
    if (found != sides_.end()) core = found->second.core;
  }
  if (core != nullptr) core->Die(absl::UnavailableError(why.message()));
}

std::vector<PeerId> MessageEdgeFactory::State::Stop() {
  std::vector<PeerId> peers;
  absl::flat_hash_map<uint64_t, Side> sides;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    sides.swap(sides_);
  }
  for (const auto& [incarnation, side] : sides) {
    if (side.core == nullptr) continue;
    side.core->Die(absl::UnavailableError("the link was closed here"));
    peers.push_back(side.peer);
  }
  return peers;
}

void MessageEdgeFactory::State::Send(const PeerId& peer, MessageKind kind, std::string header, ConstBufferRef bytes,
                                     MessageEngine::Done done) {
  {
    MutexLock lock(mu_);  // held while the command is handed over, so that none follows Stop
    const auto side = sides_.find(peer.incarnation);
    if (!stopped_ && side != sides_.end() && side->second.core->Health().ok()) {
      return engine_->Send(peer, kind, std::move(header), std::move(bytes), std::move(done));
    }
  }
  done(absl::UnavailableError("the edge is dead"));
}

size_t MessageEdgeFactory::State::live_jobs(const PeerId& peer) const {
  MutexLock lock(mu_);
  const auto found = sides_.find(peer.incarnation);
  return found == sides_.end() || found->second.core == nullptr ? 0 : found->second.core->live_jobs();
}

MessageEdgeFactory::MessageEdgeFactory(MessageEngine& engine)
    : engine_(engine), state_(std::make_shared<State>(engine)) {
  engine_.SetHandler(MessageKind::kEdgeFrame, [state = state_](const Message& message) { state->OnFrame(message); });
  engine_.SetHandler(MessageKind::kEdgeControl,
                     [state = state_](const Message& message) { state->OnControl(message); });
}

MessageEdgeFactory::~MessageEdgeFactory() {
  engine_.SetHandler(MessageKind::kEdgeFrame, nullptr);
  engine_.SetHandler(MessageKind::kEdgeControl, nullptr);
  for (const PeerId& peer : state_->Stop()) engine_.Close(peer.incarnation);
}

PeerId MessageEdgeFactory::self() const {
  return engine_.self();
}

absl::StatusOr<std::shared_ptr<Edge>> MessageEdgeFactory::Open(const PeerId& peer) {
  return state_->Open(peer);
}

void MessageEdgeFactory::Close(const PeerId& peer) {
  state_->Bury(peer, absl::UnavailableError("the edge was closed here"));
  engine_.Close(peer.incarnation);
}

size_t MessageEdgeFactory::live_jobs(const PeerId& peer) const {
  return state_->live_jobs(peer);
}

}  // namespace runahead
