#include "worker/link/device_comms.h"

#include <algorithm>

#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr size_t kIdBytes = 128;

}  // namespace

void DeviceComms::OnOpened() {
  MutexLock lock(mu_);
  if (why_.ok() && draws_ids_ && !making_) MakeLater("");
}

void DeviceComms::OnIds(std::string_view ids) {
  {
    MutexLock lock(mu_);
    if (!why_.ok()) return;
    if (!draws_ids_ && !making_ && ids.size() == 2 * kIdBytes) return MakeLater(std::string(ids));
  }
  Fail(absl::UnavailableError("the peer's ids of communicators are out of place"));
}

Event DeviceComms::Send(ConstBufferRef bytes, std::shared_ptr<uint64_t> sum) {
  return Begin({std::move(bytes), std::move(sum), nullptr, EventSource()});
}

Event DeviceComms::Recv(BufferRef into, std::shared_ptr<Came> came) {
  return Begin({std::move(into), std::make_shared<uint64_t>(0), std::move(came), EventSource()});
}

Event DeviceComms::Begin(Move move) {
  const Event moved = move.moved.event();
  absl::Status why;
  Event event;
  {
    MutexLock lock(mu_);
    why = why_;
    if (why.ok() && comms_.out == nullptr) {
      waiting_.push_back(std::move(move));
      return moved;
    }
    if (why.ok()) event = Enqueue(move);
  }
  if (why.ok()) {
    Watch(event, std::move(move));
  } else {
    move.moved.Fire(why);
  }
  return moved;
}

Event DeviceComms::Enqueue(const Move& move) {
  if (move.came == nullptr) return comms_.out->Send(move.bytes, move.sum);
  const Event before = std::exchange(last_received_, move.moved.event());
  return WhenAll({comms_.in->Recv(move.bytes, move.sum), before});
}

void DeviceComms::Watch(const Event& event, Move move) {
  move.bytes = {};
  event.OnFire([comms = shared_from_this(), move = std::move(move),
                asked = MonotonicNow()](const absl::Status& status) { comms->Ended(move, asked, status); });
}

void DeviceComms::Ended(const Move& move, absl::Time asked, const absl::Status& status) {
  if (status.ok() && move.came != nullptr) {
    MutexLock lock(mu_);
    *move.came = {{std::max(asked, free_since_), MonotonicNow()}, *move.sum};
    free_since_ = move.came->last;
  }
  if (!status.ok()) Fail(absl::UnavailableError(status.message()));
  move.moved.Fire(status);
}

void DeviceComms::NoteFree() {
  MutexLock lock(mu_);
  free_since_ = MonotonicNow();
}

void DeviceComms::MakeLater(std::string ids) {
  making_ = true;
  ++tasks_;
  shared_.making.Post([comms = shared_from_this(), ids = std::move(ids)] { comms->Make(ids); });
}

absl::StatusOr<DeviceComms::Comms> DeviceComms::OpenComms(std::string& ids) const {
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

void DeviceComms::Make(std::string ids) {
  const bool drawn_here = ids.empty();
  absl::StatusOr<Comms> made = OpenComms(ids);
  std::vector<std::pair<Event, Move>> started;
  if (made.ok()) {
    const Event ready[] = {made->out->ready(), made->in->ready()};
    ready[1].OnFire([comms = shared_from_this()](const absl::Status&) { comms->NoteFree(); });
    bool alive = false;
    {
      MutexLock lock(mu_);
      alive = why_.ok();
      if (alive) {
        comms_ = *std::move(made);
        for (Move& move : std::exchange(waiting_, {})) {
          Event event = Enqueue(move);
          started.emplace_back(std::move(event), std::move(move));
        }
      }
    }
    if (alive && drawn_here) hooks_.tell(ids);
    for (const Event& event : ready) {
      event.OnFire([comms = shared_from_this()](const absl::Status& status) {
        if (!status.ok()) comms->Fail(absl::UnavailableError(status.message()));
      });
    }
    made->Stop();  // what a death meanwhile left over
    *made = {};
  } else {
    Fail(absl::UnavailableError(made.status().message()));
  }
  for (auto& [event, move] : started) Watch(event, std::move(move));
  TaskEnded();
}

void DeviceComms::Check() {
  absl::Status health;
  {
    MutexLock lock(mu_);
    if (comms_.out == nullptr) return;
    health = comms_.out->Health();
    if (health.ok()) health = comms_.in->Health();
  }
  if (!health.ok()) Fail(absl::UnavailableError(health.message()));
}

void DeviceComms::Fail(const absl::Status& why) {
  std::deque<Move> waiting;
  const auto comms = std::make_shared<Comms>();
  {
    MutexLock lock(mu_);
    if (!why_.ok()) return;
    why_ = why;
    ++tasks_;
    waiting.swap(waiting_);
    *comms = std::move(comms_);
  }
  // Both at once, and those of other edges too: to end one may be to wait for what the others have under way.
  comms->Stop();
  hooks_.on_failure(why);
  for (Move& move : waiting) {
    move.bytes = {};
    move.moved.Fire(why);
  }
  // Never on this thread: it may be the communicator's own.
  shared_.ending.Post([self = shared_from_this(), comms] {
    *comms = {};
    self->TaskEnded();
  });
}

void DeviceComms::TaskEnded() {
  {
    MutexLock lock(mu_);
    if (--tasks_ > 0 || why_.ok()) return;
  }
  gone_.Fire(absl::OkStatus());
}

}  // namespace runahead
