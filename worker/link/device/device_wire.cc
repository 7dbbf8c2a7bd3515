#include "worker/link/device/device_wire.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

constexpr size_t kIdBytes = 128;
// Of a reason that is told to the peer.
constexpr size_t kReasonBytes = 1000;

}  // namespace

// An announced frame at the receiving side.
class DeviceWire::Frame final : public ArrivedFrame {
 public:
  Frame(std::shared_ptr<DeviceWire> wire, uint64_t sequence, size_t size)
      : wire_(std::move(wire)), sequence_(sequence), size_(size) {}
  ~Frame() override {
    if (!accepted_) wire_->Skip(sequence_);
  }
  size_t size() const override { return size_; }
  void Accept(BufferRef into, ReceiveDone done) override {
    accepted_ = true;
    wire_->Accept({sequence_, std::move(into), std::move(done)});
  }

 private:
  const std::shared_ptr<DeviceWire> wire_;
  const uint64_t sequence_;
  const size_t size_;
  bool accepted_ = false;
};

void DeviceWire::Start() {
  MutexLock lock(mu_);
  if (started_ || !why_.ok()) return;
  started_ = true;
  DeviceMessage opened;
  opened.kind = DeviceMessage::Kind::kOpened;
  shared_.directory->Send(peer_, MessageKind::kDeviceEdge, Pack(opened), ConstBufferRef(), [](const absl::Status&) {});
}

void DeviceWire::Post(const DeviceMessage& message) {
  if (!met_) return outbox_.push_back(Pack(message));
  // When it fails the connection is dead, which the edge hears of by itself.
  shared_.directory->Send(peer_, MessageKind::kDeviceEdge, Pack(message), ConstBufferRef(), [](const absl::Status&) {});
}

void DeviceWire::EndWith(const absl::Status& why, const Done& done) {
  if (const auto core = core_.lock()) core->Die(why);
  done(why);
}

void DeviceWire::SendFrame(const FrameId& id, ConstBufferRef bytes, std::function<void(absl::Status)> done) {
  absl::Status why;
  {
    MutexLock lock(mu_);
    why = why_;
    if (why.ok()) {
      DeviceMessage announce;
      announce.kind = DeviceMessage::Kind::kAnnounce;
      announce.job = id.job;
      announce.layer = id.layer;
      announce.piece = id.piece;
      announce.sequence = next_++;
      announce.size = bytes.size;
      announced_.emplace(announce.sequence, Outgoing{std::move(bytes), std::move(done)});
      return Post(announce);
    }
  }
  EndWith(why, done);
}

void DeviceWire::SendControl(const EdgeControl& control) {
  DeviceMessage message;
  message.kind = DeviceMessage::Kind::kControl;
  message.detail = static_cast<uint8_t>(control.kind);
  message.status = static_cast<uint16_t>(control.status);
  message.job = control.job;
  message.frames = control.frames;
  MutexLock lock(mu_);
  if (why_.ok()) Post(message);
}

void DeviceWire::OnMessage(const DeviceMessage& message) {
  const auto core = core_.lock();
  if (core == nullptr) return;
  switch (message.kind) {
    case DeviceMessage::Kind::kOpened:
      return OnOpened();
    case DeviceMessage::Kind::kIds:
      return OnIds(message.text);
    case DeviceMessage::Kind::kAnnounce:
      return core->OnFrame({message.job, message.layer, message.piece},
                           std::make_shared<Frame>(shared_from_this(), message.sequence, message.size));
    case DeviceMessage::Kind::kGo:
      return OnGo(message.sequence);
    case DeviceMessage::Kind::kSkip:
      return OnSkip(message.sequence);
    case DeviceMessage::Kind::kControl:
      return core->OnControl({static_cast<EdgeControl::Kind>(message.detail), message.job, message.frames,
                              static_cast<absl::StatusCode>(message.status)});
    case DeviceMessage::Kind::kFailed:
      return Fail(
          absl::UnavailableError(absl::StrCat("the peer gave the communicator between the GPUs up: ", message.text)),
          /*tell_peer=*/false);
  }
}

void DeviceWire::OnOpened() {
  MutexLock lock(mu_);
  if (met_ || !why_.ok()) return;
  met_ = true;
  for (std::string& message : std::exchange(outbox_, {})) {
    shared_.directory->Send(peer_, MessageKind::kDeviceEdge, std::move(message), ConstBufferRef(),
                            [](const absl::Status&) {});
  }
  if (shared_.self < peer_.incarnation) MakeLater("");
}

void DeviceWire::OnIds(const std::string& ids) {
  {
    MutexLock lock(mu_);
    if (!why_.ok()) return;
    if (shared_.self > peer_.incarnation && !making_ && ids.size() == 2 * kIdBytes) return MakeLater(ids);
  }
  Fail(absl::UnavailableError("the peer's ids of communicators are out of place"), /*tell_peer=*/true);
}

void DeviceWire::OnGo(uint64_t sequence) {
  Started started;
  bool known = true;
  {
    MutexLock lock(mu_);
    if (!why_.ok()) return;
    const auto found = announced_.find(sequence);
    known = found != announced_.end();
    if (known) {
      Outgoing frame = std::move(found->second);
      announced_.erase(found);
      if (comms_.out == nullptr) {
        going_.push_back(std::move(frame));
      } else {
        StartSend(std::move(frame), started);
      }
    }
  }
  Watch(std::move(started));
  // Its receive would meet another frame's send.
  if (!known) Fail(absl::UnavailableError("the peer asked for a frame that was not announced"), /*tell_peer=*/true);
}

void DeviceWire::OnSkip(uint64_t sequence) {
  Outgoing frame;
  {
    MutexLock lock(mu_);
    const auto found = announced_.find(sequence);
    if (found == announced_.end()) return;
    frame = std::move(found->second);
    announced_.erase(found);
  }
  frame.done(absl::CancelledError("the peer discarded the frame"));
}

void DeviceWire::Skip(uint64_t sequence) {
  DeviceMessage skip;
  skip.kind = DeviceMessage::Kind::kSkip;
  skip.sequence = sequence;
  MutexLock lock(mu_);
  if (why_.ok()) Post(skip);
}

void DeviceWire::Accept(Accepted accepted) {
  Started started;
  absl::Status why;
  {
    MutexLock lock(mu_);
    why = why_;
    if (why.ok() && comms_.in == nullptr) return accepted_.push_back(std::move(accepted));
    if (why.ok()) StartRecv(std::move(accepted), started);
  }
  if (!why.ok()) return EndWith(why, Failing(std::move(accepted.done)));
  Watch(std::move(started));
}

void DeviceWire::StartRecv(Accepted accepted, Started& started) {
  DeviceMessage go;
  go.kind = DeviceMessage::Kind::kGo;
  go.sequence = accepted.sequence;
  const bool empty = accepted.into.size == 0;
  const Event received = empty ? Event() : comms_.in->Recv(std::move(accepted.into));
  Done came = [wire = shared_from_this(), empty, asked = MonotonicNow(),
               done = std::move(accepted.done)](const absl::Status& status) {
    done(status, status.ok() && !empty ? wire->Came(asked) : WireTime{asked, asked});
  };
  started.emplace_back(received, std::move(came));
  Post(go);
}

WireTime DeviceWire::Came(absl::Time asked) {
  MutexLock lock(mu_);
  const WireTime time{std::max(asked, free_since_), MonotonicNow()};
  free_since_ = time.last;
  return time;
}

void DeviceWire::NoteFree() {
  MutexLock lock(mu_);
  free_since_ = MonotonicNow();
}

void DeviceWire::StartSend(Outgoing frame, Started& started) {
  const Event sent = frame.bytes.size == 0 ? Event() : comms_.out->Send(std::move(frame.bytes));
  started.emplace_back(sent, std::move(frame.done));
}

void DeviceWire::Watch(Started started) {
  for (auto& [event, done] : started) {
    event.OnFire([wire = shared_from_this(), done = std::move(done)](const absl::Status& status) {
      if (status.ok()) return done(status);
      const absl::Status why = absl::UnavailableError(status.message());
      wire->Fail(why, /*tell_peer=*/true);
      wire->EndWith(why, done);
    });
  }
}

void DeviceWire::MakeLater(std::string ids) {
  making_ = true;
  ++tasks_;
  shared_.making.Post([wire = shared_from_this(), ids = std::move(ids)] { wire->Make(ids); });
}

absl::StatusOr<DeviceWire::Comms> DeviceWire::OpenComms(std::string& ids) const {
  if (ids.empty()) {
    for (int i = 0; i < 2; ++i) {
      RUNAHEAD_ASSIGN_OR_RETURN(const std::string id, shared_.comms.NewId());
      ids += id;
    }
    if (ids.size() != 2 * kIdBytes) return absl::InternalError("an id of another size was drawn");
    RUNAHEAD_ASSIGN_OR_RETURN(auto out, shared_.comms.Open(ids.substr(0, kIdBytes), PeerRank::kSender));
    RUNAHEAD_ASSIGN_OR_RETURN(auto in, shared_.comms.Open(ids.substr(kIdBytes), PeerRank::kReceiver));
    return Comms{std::move(out), std::move(in)};
  }
  RUNAHEAD_ASSIGN_OR_RETURN(auto in, shared_.comms.Open(ids.substr(0, kIdBytes), PeerRank::kReceiver));
  RUNAHEAD_ASSIGN_OR_RETURN(auto out, shared_.comms.Open(ids.substr(kIdBytes), PeerRank::kSender));
  return Comms{std::move(out), std::move(in)};
}

void DeviceWire::Make(std::string ids) {
  const bool drawn_here = ids.empty();
  absl::StatusOr<Comms> made = OpenComms(ids);
  Started started;
  if (made.ok()) {
    const auto check = [wire = shared_from_this()](const absl::Status& status) {
      if (!status.ok()) wire->Fail(absl::UnavailableError(status.message()), /*tell_peer=*/true);
    };
    const Event ready[] = {made->out->ready(), made->in->ready()};
    ready[1].OnFire([wire = shared_from_this()](const absl::Status&) { wire->NoteFree(); });
    {
      MutexLock lock(mu_);
      if (why_.ok()) Install(*made, drawn_here ? ids : "", started);
    }
    for (const Event& event : ready) event.OnFire(check);
    made->Stop();  // what a death meanwhile left over
    *made = {};
  } else {
    Fail(absl::UnavailableError(made.status().message()), /*tell_peer=*/true);
  }
  Watch(std::move(started));
  TaskEnded();
}

void DeviceWire::Install(Comms& comms, const std::string& ids_to_tell, Started& started) {
  comms_ = std::move(comms);
  if (!ids_to_tell.empty()) {
    DeviceMessage ids;
    ids.kind = DeviceMessage::Kind::kIds;
    ids.text = ids_to_tell;
    Post(ids);
  }
  for (Accepted& accepted : std::exchange(accepted_, {})) StartRecv(std::move(accepted), started);
  for (Outgoing& frame : std::exchange(going_, {})) StartSend(std::move(frame), started);
}

void DeviceWire::CheckComms() {
  absl::Status health;
  {
    MutexLock lock(mu_);
    if (comms_.out == nullptr) return;
    health = comms_.out->Health();
    if (health.ok()) health = comms_.in->Health();
  }
  if (!health.ok()) Fail(absl::UnavailableError(health.message()), /*tell_peer=*/true);
}

void DeviceWire::Fail(const absl::Status& why, bool tell_peer) {
  std::vector<Done> ended;
  auto comms = std::make_shared<Comms>();
  {
    MutexLock lock(mu_);
    if (!why_.ok()) return;
    if (tell_peer) {
      DeviceMessage failed;
      failed.kind = DeviceMessage::Kind::kFailed;
      failed.text = std::string(why.message().substr(0, kReasonBytes));
      shared_.directory->Send(peer_, MessageKind::kDeviceEdge, Pack(failed), ConstBufferRef(),
                              [](const absl::Status&) {});
    }
    why_ = why;
    ++tasks_;
    for (auto& [sequence, frame] : announced_) ended.push_back(std::move(frame.done));
    for (Outgoing& frame : going_) ended.push_back(std::move(frame.done));
    for (Accepted& accepted : accepted_) ended.push_back(Failing(std::move(accepted.done)));
    announced_.clear();
    going_.clear();
    accepted_.clear();
    outbox_.clear();
    *comms = std::move(comms_);
  }
  // Both at once, and those of other edges too: to end one may be to wait for what the others have under way.
  comms->Stop();
  if (const auto core = core_.lock()) core->Die(why);
  for (Done& done : ended) done(why);
  ended.clear();
  // Never on this thread: it may be the communicator's own.
  shared_.ending.Post([wire = shared_from_this(), comms] {
    *comms = {};
    wire->TaskEnded();
  });
}

void DeviceWire::TaskEnded() {
  {
    MutexLock lock(mu_);
    if (--tasks_ > 0 || why_.ok()) return;
  }
  gone_.Fire(absl::OkStatus());
}

}  // namespace runahead
