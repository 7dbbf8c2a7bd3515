#include "worker/link/device/device_wire.h"

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
      return OnAnnounce(message, *core);
    case DeviceMessage::Kind::kGo:
      return OnGo(message.sequence);
    case DeviceMessage::Kind::kSkip:
      return OnAnswer(message.sequence, absl::CancelledError("the peer discarded the frame"));
    case DeviceMessage::Kind::kTaken:
      return OnAnswer(message.sequence, absl::OkStatus());
    case DeviceMessage::Kind::kLost:
      return OnAnswer(message.sequence, absl::DataLossError("the frame came damaged every time"));
    case DeviceMessage::Kind::kSum:
      return OnSum(message.sequence, message.sum);
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

void DeviceWire::NoteFree() {
  MutexLock lock(mu_);
  free_since_ = MonotonicNow();
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
  for (const uint64_t sequence : std::exchange(accepted_, {})) StartRecv(sequence, started);
  for (const uint64_t sequence : std::exchange(going_, {})) StartSend(sequence, started);
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
    // What is asked for and not in a communicator yet is not under way.
    for (const uint64_t sequence : std::exchange(going_, {})) --announced_.at(sequence).moving;
    for (const uint64_t sequence : std::exchange(accepted_, {})) coming_.at(sequence).moving = false;
    for (auto& [sequence, frame] : announced_) {
      if (!frame.answer.has_value()) frame.answer = why;
      if (frame.moving == 0) ended.push_back(std::move(frame.done));
    }
    for (auto& [sequence, frame] : coming_) {
      if (!frame.moving) ended.push_back(FailingFrame(std::move(frame.done)));
    }
    absl::erase_if(announced_, [](const auto& frame) { return frame.second.moving == 0; });
    absl::erase_if(coming_, [](const auto& frame) { return !frame.second.moving; });
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
