// What comes in, the staging of both directions, and the end. message_wire_send.cc has what goes out.
#include "worker/link/message/message_wire.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// When a message cannot be sent the connection is dead, which the core hears of by itself.
void Ignore(const absl::Status&) {}

}  // namespace

// A frame whose bytes have come, or wait at the peer.
class MessageWire::Frame final : public ArrivedFrame {
 public:
  Frame(std::shared_ptr<MessageWire> wire, const FrameHeader& header, std::shared_ptr<MessagePayload> payload)
      : wire_(std::move(wire)), header_(header), payload_(std::move(payload)) {}
  ~Frame() override {
    if (!accepted_) wire_->Answer(kSkipped, header_.number);
  }
  size_t size() const override { return payload_->size(); }
  void Accept(BufferRef into, FrameDone done) override {
    accepted_ = true;
    wire_->Take({header_.number, IdOf(header_), std::move(into), std::move(done)}, header_.sum, payload_);
  }

 private:
  const std::shared_ptr<MessageWire> wire_;
  const FrameHeader header_;
  const std::shared_ptr<MessagePayload> payload_;
  bool accepted_ = false;
};

// A frame that the peer offers.
class MessageWire::Offered final : public ArrivedFrame {
 public:
  Offered(std::shared_ptr<MessageWire> wire, const OfferHeader& offer) : wire_(std::move(wire)), offer_(offer) {}
  ~Offered() override {
    if (!accepted_) wire_->Answer(kSkipped, offer_.frame.number);
  }
  size_t size() const override { return offer_.size; }
  void Accept(BufferRef into, FrameDone done) override {
    accepted_ = true;
    wire_->Want(kWanted, {offer_.frame.number, IdOf(offer_.frame), std::move(into), std::move(done)});
  }

 private:
  const std::shared_ptr<MessageWire> wire_;
  const OfferHeader offer_;
  bool accepted_ = false;
};

MessageWire::MessageWire(std::weak_ptr<EdgeDirectory> directory, PeerId peer, MessageEdgeShared& shared)
    : directory_(std::move(directory)), peer_(std::move(peer)), shared_(shared) {}

void MessageWire::Post(MessageKind kind, std::string header, ConstBufferRef bytes, Done done) {
  const auto directory = directory_.lock();
  if (directory == nullptr) return done(absl::UnavailableError("the link has stopped"));
  directory->Send(peer_, kind, std::move(header), std::move(bytes), std::move(done));
}

void MessageWire::Answer(OfferKind kind, uint64_t number) {
  Post(MessageKind::kEdgeOffer, PackHeader(OfferHeader{kind, 0, HeaderOf({}, number)}), ConstBufferRef(), Ignore);
}

void MessageWire::SendControl(const EdgeControl& control) {
  const ControlHeader header{control.job, control.frames, static_cast<uint16_t>(control.status),
                             static_cast<uint16_t>(control.kind)};
  Post(MessageKind::kEdgeControl, PackHeader(header), ConstBufferRef(), Ignore);
}

void MessageWire::OnFrame(std::string_view header, std::shared_ptr<MessagePayload> payload) {
  FrameHeader frame;
  const auto core = core_.lock();
  if (core == nullptr || !UnpackHeader(header, frame)) return;
  core->OnFrame(IdOf(frame), std::make_shared<Frame>(shared_from_this(), frame, std::move(payload)));
}

void MessageWire::OnControl(std::string_view header) {
  ControlHeader control;
  const auto core = core_.lock();
  if (core == nullptr || !UnpackHeader(header, control)) return;
  core->OnControl({static_cast<EdgeControl::Kind>(control.kind), control.job, control.frames,
                   static_cast<absl::StatusCode>(control.status)});
}

void MessageWire::OnOffer(std::string_view header) {
  OfferHeader offer;
  const auto core = core_.lock();
  if (core == nullptr || !UnpackHeader(header, offer)) return;
  const uint64_t number = offer.frame.number;
  switch (offer.kind) {
    case kOffer:
      return core->OnFrame(IdOf(offer.frame), std::make_shared<Offered>(shared_from_this(), offer));
    case kWanted:
      return SendAsked(number);
    case kAgain:
      if (shared_.faults.on_retry) shared_.faults.on_retry();
      return SendAsked(number);
    case kSkipped:
      return OnAnswer(number, absl::CancelledError("the peer discarded the frame"));
    case kTaken:
      return OnAnswer(number, absl::OkStatus());
    case kLost:
      return OnAnswer(number, absl::DataLossError(absl::StrCat("the frame came damaged ", kFrameAttempts, " times")));
  }
}

void MessageWire::OnBytes(std::string_view header, const std::shared_ptr<MessagePayload>& payload) {
  BytesHeader bytes;
  if (!UnpackHeader(header, bytes)) return;
  Wanted wanted;
  {
    MutexLock lock(mu_);
    const auto found = wanted_.find(bytes.number);
    if (found == wanted_.end()) return;
    wanted = std::move(found->second);
    wanted_.erase(found);
  }
  if (payload->size() == wanted.into.size) return Take(std::move(wanted), bytes.sum, payload);
  wanted.into = {};
  wanted.done(absl::UnavailableError("the peer sent another frame than it offered"), {});
}

void MessageWire::Want(OfferKind kind, Wanted wanted) {
  const uint64_t number = wanted.number;
  absl::Status why;
  {
    MutexLock lock(mu_);
    why = why_;
    // Two frames of one number: the peer is broken.
    if (why.ok() && wanted_.contains(number)) why = absl::UnavailableError("a frame's number is taken");
    if (why.ok()) wanted_.emplace(number, std::move(wanted));
  }
  if (why.ok()) return Answer(kind, number);
  wanted.into = {};
  wanted.done(why, {});
}

void MessageWire::Take(Wanted wanted, uint64_t sum, const std::shared_ptr<MessagePayload>& payload) {
  absl::Status why;
  {
    MutexLock lock(mu_);
    why = why_;
    if (why.ok()) ++busy_;
  }
  if (!why.ok()) {
    wanted.into = {};
    return wanted.done(why, {});
  }
  if (shared_.staging != nullptr && wanted.into.size > 0) {
    TakeStaged(std::move(wanted), sum, payload);
  } else {
    TakeHere(std::move(wanted), sum, payload);
  }
  End();
}

void MessageWire::TakeHere(Wanted wanted, uint64_t sum, const std::shared_ptr<MessagePayload>& payload) {
  const BufferRef into = wanted.into;
  payload->Accept({into}, [self = shared_from_this(), wanted = std::move(wanted), sum](const absl::Status& status,
                                                                                       const WireTime& time) mutable {
    if (!status.ok()) {
      wanted.into = {};
      return wanted.done(status, {});
    }
    const FrameId id = wanted.id;
    const BufferRef where = wanted.into;
    self->Check(id, where, sum, [self, wanted = std::move(wanted), sum, time](bool whole) mutable {
      if (!whole) return self->CameDamaged(std::move(wanted));
      wanted.into = {};
      self->Answer(kTaken, wanted.number);
      wanted.done(absl::OkStatus(), {time, {FrameSum::Kind::kHost, sum}});
    });
  });
}

void MessageWire::TakeStaged(Wanted wanted, uint64_t sum, const std::shared_ptr<MessagePayload>& payload) {
  struct Coming {
    Wanted wanted;
    FrameCame came;
    bool damaged = false;
  };
  const std::shared_ptr<StagingLane> lane = shared_.staging->receiving;
  const size_t size = wanted.into.size;
  const auto coming = std::make_shared<Coming>(Coming{std::move(wanted), {{}, {FrameSum::Kind::kHost, sum}}});
  OnRoom receive = [self = shared_from_this(), lane, coming, payload](const BufferRef& room, Done end) {
    payload->Accept({room}, [self, lane, coming, room = BufferRef(room), end = std::move(end)](
                                const absl::Status& status, const WireTime& time) mutable {
      if (!status.ok()) {
        room = {};
        return end(status);
      }
      coming->came.wire = time;
      const BufferRef where = room;
      self->Check(coming->wanted.id, where, coming->came.sum.value,
                  [self, lane, coming, room = std::move(room), end](bool whole) mutable {
                    coming->damaged = !whole;
                    if (!whole) {
                      room = {};
                      return end(absl::OkStatus());
                    }
                    self->Answer(kTaken, coming->wanted.number);
                    lane->Copy(std::move(room), std::move(coming->wanted.into), end);
                  });
    });
  };
  Done ended = [self = shared_from_this(), coming](const absl::Status& status) {
    if (status.ok() && coming->damaged) return self->CameDamaged(std::move(coming->wanted));
    coming->wanted.into = {};
    coming->wanted.done(status, coming->came);
  };
  TakeRoom(lane, size, std::move(ended), std::move(receive));
}

void MessageWire::Check(const FrameId& id, BufferRef where, uint64_t sum, std::function<void(bool)> then) {
  Begin();
  shared_.summer.SumCome(id, std::move(where), [self = shared_from_this(), sum, then = std::move(then)](uint64_t is) {
    then(is == sum);
    self->End();
  });
}

void MessageWire::CameDamaged(Wanted wanted) {
  if (shared_.faults.on_corrupt) shared_.faults.on_corrupt();
  LogDamagedFrame(wanted.id, wanted.came + 1, peer_.key());
  if (++wanted.came < kFrameAttempts) return Want(kAgain, std::move(wanted));
  wanted.into = {};
  Answer(kLost, wanted.number);
  wanted.done(DamagedFrame(wanted.id, kFrameAttempts), {});
}

void MessageWire::Begin() {
  MutexLock lock(mu_);
  ++busy_;
}

void MessageWire::End() {
  MutexLock lock(mu_);
  --busy_;
  ended_.NotifyAll();
}

void MessageWire::TakeRoom(const std::shared_ptr<StagingLane>& lane, size_t bytes, Done done, OnRoom next) {
  absl::Status refused;
  {
    MutexLock lock(mu_);
    refused = why_;
    if (refused.ok()) {
      const uint64_t number = next_++;
      const uint64_t request =
          lane->Request(bytes, [self = shared_from_this(), number, next = std::move(next)](
                                   const absl::StatusOr<BufferRef>& room) { self->Granted(number, room, next); });
      if (request != 0) {
        ++busy_;
        waiting_.emplace(number, WaitingForRoom{lane, request, std::move(done)});
        return;
      }
      refused = absl::UnavailableError("the link has stopped");
    }
  }
  done(refused);
}

void MessageWire::Granted(uint64_t number, const absl::StatusOr<BufferRef>& room, const OnRoom& next) {
  Done done;
  {
    MutexLock lock(mu_);
    const auto found = waiting_.find(number);
    if (found == waiting_.end()) return;  // failed meanwhile
    done = std::move(found->second.done);
    waiting_.erase(found);
  }
  Done counted = [self = shared_from_this(), done = std::move(done)](const absl::Status& status) {
    done(status);
    self->End();
  };
  if (room.ok()) return next(*room, std::move(counted));
  // What was promised to the peer cannot be kept.
  if (const auto core = core_.lock()) core->Die(absl::UnavailableError(room.status().message()));
  counted(room.status());
}

void MessageWire::Fail(const absl::Status& why) {
  std::vector<Done> failed;
  std::vector<WaitingForRoom> waiting;
  {
    MutexLock lock(mu_);
    if (why_.ok()) why_ = why;
    for (auto& [number, sent] : sent_) {
      if (!sent.answer.has_value()) sent.answer = why;
      if (sent.uses == 0) failed.push_back(std::move(sent.done));
    }
    absl::erase_if(sent_, [](const auto& sent) { return sent.second.uses == 0; });
    for (auto& [number, wanted] : wanted_) {
      failed.push_back(FailingFrame(std::move(wanted.done)));
    }
    for (auto& [number, waits] : waiting_) waiting.push_back(std::move(waits));
    wanted_.clear();
    waiting_.clear();
  }
  for (const Done& done : failed) done(why);
  for (const WaitingForRoom& waits : waiting) {
    waits.lane->Cancel(waits.request);
    waits.done(why);
    End();
  }
}

void MessageWire::AwaitEnd() {
  MutexLock lock(mu_);
  while (busy_ > 0) ended_.Wait(mu_);
}

}  // namespace runahead
