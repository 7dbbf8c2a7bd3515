#include "worker/link/edge_core.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

std::string Describe(const FrameId& id) {
  return absl::StrCat("frame (job ", id.job, ", layer ", id.layer, ", piece ", id.piece, ")");
}

Event Fired(absl::Status status) {
  EventSource source;
  source.Fire(std::move(status));
  return source.event();
}

}  // namespace

// What a state change wants done once the lock is released.
struct EdgeCore::Effects {
  struct Announcement {
    FrameId id;
    WaitingSend send;
  };
  struct Acceptance {
    FrameId id;
    PostedRecv recv;
    ArrivedFrame frame;
  };
  std::vector<Announcement> announcements;
  std::vector<EdgeControl> controls;
  std::vector<Acceptance> acceptances;
  std::vector<ArrivedFrame> discarded;
  std::vector<std::pair<EventSource, absl::Status>> fire;
};

std::shared_ptr<EdgeCore> EdgeCore::Create(std::shared_ptr<EdgeWire> wire, std::string name) {
  return std::shared_ptr<EdgeCore>(new EdgeCore(std::move(wire), std::move(name)));
}

Event EdgeCore::SendSummed(FrameId id, ConstBufferRef bytes, const Event& after, std::shared_ptr<const FrameSum> sum) {
  EventSource source;
  {
    MutexLock lock(mu_);
    if (absl::Status status = AdmitSend(id); !status.ok()) return Fired(std::move(status));
    outgoing_[id.job].waiting.emplace(id, WaitingSend{source, std::move(bytes), std::move(sum)});
  }
  after.OnFire([core = shared_from_this(), id](const absl::Status& status) { core->Announce(id, status); });
  return source.event();
}

absl::Status EdgeCore::AdmitSend(const FrameId& id) {
  RUNAHEAD_RETURN_IF_ERROR(health_);
  if (const std::optional<bool> closed = outgoing_closed_.Find(id.job)) {
    if (*closed) return Dropped(id.job);
    return absl::FailedPreconditionError(absl::StrCat(Describe(id), " was sent after Finish of its job"));
  }
  Outgoing& out = outgoing_[id.job];
  if (out.dropped) return Dropped(id.job);
  if (out.finish_called) {
    return absl::FailedPreconditionError(absl::StrCat(Describe(id), " was sent after Finish of its job"));
  }
  if (!out.known.insert(id).second) {
    return absl::AlreadyExistsError(absl::StrCat(Describe(id), " was sent before; a frame is sent once"));
  }
  return absl::OkStatus();
}

void EdgeCore::Announce(const FrameId& id, const absl::Status& after) {
  Effects effects;
  {
    MutexLock lock(mu_);
    const auto job = outgoing_.find(id.job);
    if (job == outgoing_.end()) return;  // dropped or dead meanwhile: it has fired
    const auto waiting = job->second.waiting.find(id);
    if (waiting == job->second.waiting.end()) return;
    WaitingSend send = std::move(waiting->second);
    job->second.waiting.erase(waiting);
    if (after.ok()) {
      ++job->second.announced;
      ++job->second.moving;
      effects.announcements.push_back({id, std::move(send)});
    } else {
      effects.fire.emplace_back(send.source, after);
    }
    AdvanceOutgoing(id.job, effects);
  }
  Run(effects);
}

void EdgeCore::OnSent(JobId job, const EventSource& source, absl::Status status) {
  Effects effects;
  {
    MutexLock lock(mu_);
    // On a dead edge also what the transport calls sent: the peer, which was closed, may have discarded it.
    if (!health_.ok()) {
      status = health_;
    } else if (!status.ok() && !absl::IsDataLoss(status)) {
      status = Dropped(job);
    }
    effects.fire.emplace_back(source, std::move(status));
    if (const auto found = outgoing_.find(job); found != outgoing_.end()) {
      --found->second.moving;
      AdvanceOutgoing(job, effects);
    }
  }
  Run(effects);
}

Event EdgeCore::Finish(JobId job) {
  EventSource source;
  Effects effects;
  {
    MutexLock lock(mu_);
    if (!health_.ok()) return Fired(health_);
    if (const std::optional<bool> closed = outgoing_closed_.Find(job)) {
      return Fired(*closed ? Dropped(job) : absl::OkStatus());
    }
    Outgoing& out = outgoing_[job];
    out.finish_called = true;
    out.finishers.push_back(source);
    AdvanceOutgoing(job, effects);
  }
  Run(effects);
  return source.event();
}

void EdgeCore::AdvanceOutgoing(JobId job, Effects& effects) {
  const auto found = outgoing_.find(job);
  if (found == outgoing_.end()) return;
  Outgoing& out = found->second;
  if (out.finish_called && !out.finish_sent && out.waiting.empty()) {
    out.finish_sent = true;
    effects.controls.push_back({EdgeControl::Kind::kFinish, job, out.announced, absl::StatusCode::kOk});
  }
  if (!out.answered.has_value() || !out.finish_sent || out.moving > 0) return;
  const bool dropped = out.dropped || *out.answered == absl::StatusCode::kCancelled;
  absl::Status status;
  if (dropped) {
    status = Dropped(job);
  } else if (*out.answered != absl::StatusCode::kOk) {
    status = absl::Status(*out.answered, absl::StrCat(name_, " could not take every frame of job ", job));
  }
  for (EventSource& finisher : out.finishers) effects.fire.emplace_back(std::move(finisher), status);
  outgoing_.erase(found);
  outgoing_closed_.Add(job, dropped);
}

Reception EdgeCore::Recv(FrameId id, BufferRef into) {
  EventSource source;
  auto wire = std::make_shared<WireTime>();
  auto sum = std::make_shared<FrameSum>();
  Effects effects;
  {
    MutexLock lock(mu_);
    if (absl::Status status = AdmitRecv(id); !status.ok())
      return {Fired(std::move(status)), std::move(wire), std::move(sum)};
    Incoming& in = incoming_[id.job];
    PostedRecv recv{source, wire, sum, std::move(into)};
    if (const auto early = in.early.find(id); early != in.early.end()) {
      ArrivedFrame frame = std::move(early->second);
      in.early.erase(early);
      Match(in, id, std::move(recv), std::move(frame), effects);
      AdvanceIncoming(id.job, effects);
    } else {
      in.posted.emplace(id, std::move(recv));
    }
  }
  Run(effects);
  return {source.event(), std::move(wire), std::move(sum)};
}

absl::Status EdgeCore::AdmitRecv(const FrameId& id) {
  RUNAHEAD_RETURN_IF_ERROR(health_);
  if (const std::optional<bool> closed = incoming_closed_.Find(id.job)) {
    if (*closed) return Dropped(id.job);
    return absl::CancelledError(absl::StrCat(name_, " finished job ", id.job, " without ", Describe(id)));
  }
  Incoming& in = incoming_[id.job];
  if (in.dropped) return Dropped(id.job);
  if (!in.wanted.insert(id).second) {
    return absl::AlreadyExistsError(absl::StrCat(Describe(id), " was asked for before; a frame is received once"));
  }
  return absl::OkStatus();
}

void EdgeCore::OnFrame(const FrameId& id, ArrivedFrame frame) {
  Effects effects;
  {
    MutexLock lock(mu_);
    if (!health_.ok() || incoming_closed_.Find(id.job).has_value()) return;  // discards it
    Incoming& in = incoming_[id.job];
    const bool repeated = !in.arrived.insert(id).second;
    if (repeated || in.dropped) {
      ++in.accounted;
      effects.discarded.push_back(std::move(frame));
    } else if (const auto posted = in.posted.find(id); posted != in.posted.end()) {
      PostedRecv recv = std::move(posted->second);
      in.posted.erase(posted);
      Match(in, id, std::move(recv), std::move(frame), effects);
    } else {
      in.early.emplace(id, std::move(frame));
    }
    AdvanceIncoming(id.job, effects);
  }
  Run(effects);
}

void EdgeCore::Match(Incoming& in, const FrameId& id, PostedRecv recv, ArrivedFrame frame, Effects& effects) {
  if (frame->size() == recv.into.size) {
    ++in.moving;
    effects.acceptances.push_back({id, std::move(recv), std::move(frame)});
    return;
  }
  effects.fire.emplace_back(
      recv.source, absl::InvalidArgumentError(absl::StrCat(Describe(id), " from ", name_, " has ", frame->size(),
                                                           " bytes, its buffer has ", recv.into.size)));
  in.answer = absl::StatusCode::kInvalidArgument;
  ++in.accounted;
  effects.discarded.push_back(std::move(frame));
}

void EdgeCore::OnReceived(JobId job, const EventSource& source, absl::Status status) {
  Effects effects;
  {
    MutexLock lock(mu_);
    if (!health_.ok() && !status.ok()) status = health_;
    if (!status.ok() && !absl::IsDataLoss(status)) status = absl::UnavailableError(status.message());
    if (const auto found = incoming_.find(job); found != incoming_.end()) {
      --found->second.moving;
      ++found->second.accounted;
      if (!status.ok()) found->second.answer = status.code();
      AdvanceIncoming(job, effects);
    }
    effects.fire.emplace_back(source, std::move(status));
  }
  Run(effects);
}

void EdgeCore::AdvanceIncoming(JobId job, Effects& effects) {
  const auto found = incoming_.find(job);
  if (found == incoming_.end()) return;
  Incoming& in = found->second;
  if (!in.expected.has_value() || in.accounted < *in.expected || in.moving > 0) return;
  for (auto& [id, recv] : in.posted) {
    effects.fire.emplace_back(
        recv.source, absl::CancelledError(absl::StrCat(name_, " finished job ", job, " without ", Describe(id))));
  }
  for (auto& [id, frame] : in.early) effects.discarded.push_back(std::move(frame));  // more than it says: a broken peer
  const absl::StatusCode answer = in.dropped ? absl::StatusCode::kCancelled : in.answer;
  effects.controls.push_back({EdgeControl::Kind::kFinished, job, 0, answer});
  incoming_closed_.Add(job, in.dropped);
  incoming_.erase(found);
}

void EdgeCore::OnControl(const EdgeControl& control) {
  Effects effects;
  {
    MutexLock lock(mu_);
    if (!health_.ok()) return;
    switch (control.kind) {
      case EdgeControl::Kind::kFinish:
        if (incoming_closed_.Find(control.job).has_value()) break;
        incoming_[control.job].expected = control.frames;
        AdvanceIncoming(control.job, effects);
        break;
      case EdgeControl::Kind::kFinished:
        if (const auto found = outgoing_.find(control.job); found != outgoing_.end()) {
          found->second.answered = control.status;
          AdvanceOutgoing(control.job, effects);
        }
        break;
      case EdgeControl::Kind::kDrop:
        DropJob(control.job, effects);
        break;
      case EdgeControl::Kind::kOpened:
        opened_ = true;
        break;
    }
  }
  Run(effects);
}

void EdgeCore::Drop(JobId job) {
  Effects effects;
  {
    MutexLock lock(mu_);
    if (!health_.ok()) return;
    const auto out = outgoing_.find(job);
    const auto in = incoming_.find(job);
    const bool dropped_before =
        (out != outgoing_.end() && out->second.dropped) || (in != incoming_.end() && in->second.dropped);
    const bool closed = outgoing_closed_.Find(job).has_value() && incoming_closed_.Find(job).has_value();
    if (dropped_before || closed) return;
    effects.controls.push_back({EdgeControl::Kind::kDrop, job, 0, absl::StatusCode::kOk});
    DropJob(job, effects);
  }
  Run(effects);
}

void EdgeCore::DropJob(JobId job, Effects& effects) {
  if (!outgoing_closed_.Find(job).has_value() && !outgoing_[job].dropped) {
    Outgoing& out = outgoing_[job];
    out.dropped = true;
    out.finish_called = true;
    for (auto& [id, send] : out.waiting) effects.fire.emplace_back(send.source, Dropped(job));
    out.waiting.clear();
    AdvanceOutgoing(job, effects);
  }
  if (!incoming_closed_.Find(job).has_value() && !incoming_[job].dropped) {
    Incoming& in = incoming_[job];
    in.dropped = true;
    for (auto& [id, recv] : in.posted) effects.fire.emplace_back(recv.source, Dropped(job));
    in.posted.clear();
    in.accounted += in.early.size();
    for (auto& [id, frame] : in.early) effects.discarded.push_back(std::move(frame));
    in.early.clear();
    AdvanceIncoming(job, effects);
  }
}

void EdgeCore::Die(const absl::Status& why) {
  Effects effects;
  {
    MutexLock lock(mu_);
    if (!health_.ok()) return;
    health_ = why;
    for (auto& [job, out] : outgoing_) {
      for (auto& [id, send] : out.waiting) effects.fire.emplace_back(send.source, health_);
      for (EventSource& finisher : out.finishers) effects.fire.emplace_back(finisher, health_);
    }
    for (auto& [job, in] : incoming_) {
      for (auto& [id, recv] : in.posted) effects.fire.emplace_back(recv.source, health_);
      for (auto& [id, frame] : in.early) effects.discarded.push_back(std::move(frame));
    }
    outgoing_.clear();
    incoming_.clear();
  }
  Run(effects);
  wire_->Fail(why);
}

absl::Status EdgeCore::Health() const {
  wire_->Check();
  return known_health();
}

absl::Status EdgeCore::known_health() const {
  MutexLock lock(mu_);
  return health_;
}

bool EdgeCore::Opened() const {
  MutexLock lock(mu_);
  return opened_;
}

void EdgeCore::Announce() {
  wire_->SendControl({EdgeControl::Kind::kOpened, 0, 0, absl::StatusCode::kOk});
}

size_t EdgeCore::live_jobs() const {
  MutexLock lock(mu_);
  return outgoing_.size() + incoming_.size();
}

absl::Status EdgeCore::Dropped(JobId job) const {
  return absl::CancelledError(absl::StrCat("job ", job, " was dropped on the edge to ", name_));
}

void EdgeCore::Run(Effects& effects) {
  const std::shared_ptr<EdgeCore> self = shared_from_this();
  effects.discarded.clear();
  for (auto& [id, send] : effects.announcements) {
    const FrameSum sum = send.sum == nullptr ? FrameSum() : *send.sum;
    wire_->SendFrame(id, send.bytes, sum, [self, job = id.job, source = send.source](absl::Status status) {
      self->OnSent(job, source, std::move(status));
    });
  }
  for (auto& [id, recv, frame] : effects.acceptances) {
    wire_->AcceptFrame(id, frame, recv.into,
                       [self, job = id.job, source = recv.source, wire = recv.wire, sum = recv.sum](
                           absl::Status status, const FrameCame& came) {
                         *wire = came.wire;
                         *sum = came.sum;
                         self->OnReceived(job, source, std::move(status));
                       });
  }
  for (const EdgeControl& control : effects.controls) wire_->SendControl(control);
  for (auto& [source, status] : effects.fire) source.Fire(status);
}

}  // namespace runahead
