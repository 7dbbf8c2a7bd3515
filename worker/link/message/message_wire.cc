#include "worker/link/message/message_wire.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

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

// What the two sides say about an offered frame. The side that offers it says kOffer, with all fields; the other side
// says the rest.
enum OfferKind : uint64_t { kOffer = 1, kWanted, kSkipped };
struct OfferHeader {
  uint64_t kind = 0;
  uint64_t number = 0;
  uint64_t size = 0;
  FrameHeader frame;
};

// Of a message with the bytes of an offered frame that was wanted.
struct BytesHeader {
  uint64_t number = 0;
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

FrameHeader HeaderOf(const FrameId& id) {
  return {id.job, id.layer, id.piece};
}
FrameId IdOf(const FrameHeader& header) {
  return {header.job, header.layer, header.piece};
}

// When a message cannot be sent the connection is dead, which the core hears of by itself.
void Ignore(const absl::Status&) {}

}  // namespace

// A frame whose bytes have come, or wait at the peer.
class MessageWire::Frame final : public ArrivedFrame {
 public:
  Frame(std::shared_ptr<MessageWire> wire, std::shared_ptr<MessagePayload> payload)
      : wire_(std::move(wire)), payload_(std::move(payload)) {}
  size_t size() const override { return payload_->size(); }
  void Accept(BufferRef into, ReceiveDone done) override {
    if (wire_->staging_ == nullptr || into.size == 0) return payload_->Accept({std::move(into)}, std::move(done));
    const std::shared_ptr<StagingLane> lane = wire_->staging_->receiving;
    const size_t size = into.size;
    const auto time = std::make_shared<WireTime>();
    OnRoom receive = [lane, time, payload = payload_, into = std::move(into)](const BufferRef& room, Done end) mutable {
      payload->Accept({room}, [lane, time, room = BufferRef(room), into = std::move(into), end = std::move(end)](
                                  const absl::Status& status, const WireTime& came) mutable {
        *time = came;
        if (status.ok()) return lane->Copy(std::move(room), std::move(into), end);
        room = into = {};
        end(status);
      });
    };
    Done timed = [time, done = std::move(done)](const absl::Status& status) { done(status, *time); };
    wire_->TakeRoom(lane, size, std::move(timed), std::move(receive));
  }

 private:
  const std::shared_ptr<MessageWire> wire_;
  const std::shared_ptr<MessagePayload> payload_;
};

// A frame that the peer offers.
class MessageWire::Offered final : public ArrivedFrame {
 public:
  Offered(std::shared_ptr<MessageWire> wire, uint64_t number, size_t size)
      : wire_(std::move(wire)), number_(number), size_(size) {}
  ~Offered() override {
    if (!accepted_) wire_->Post(MessageKind::kEdgeOffer, Pack(OfferHeader{kSkipped, number_, 0, {}}), {}, Ignore);
  }
  size_t size() const override { return size_; }
  void Accept(BufferRef into, ReceiveDone done) override {
    accepted_ = true;
    wire_->Want(number_, {std::move(into), std::move(done)});
  }

 private:
  const std::shared_ptr<MessageWire> wire_;
  const uint64_t number_;
  const size_t size_;
  bool accepted_ = false;
};

MessageWire::MessageWire(std::weak_ptr<EdgeDirectory> directory, PeerId peer, EdgeStaging* staging)
    : directory_(std::move(directory)), peer_(std::move(peer)), staging_(staging) {}

void MessageWire::Post(MessageKind kind, std::string header, ConstBufferRef bytes, Done done) {
  const auto directory = directory_.lock();
  if (directory == nullptr) return done(absl::UnavailableError("the link has stopped"));
  directory->Send(peer_, kind, std::move(header), std::move(bytes), std::move(done));
}

void MessageWire::SendControl(const EdgeControl& control) {
  const ControlHeader header{control.job, control.frames, static_cast<uint16_t>(control.status),
                             static_cast<uint16_t>(control.kind)};
  Post(MessageKind::kEdgeControl, Pack(header), ConstBufferRef(), Ignore);
}

void MessageWire::SendFrame(const FrameId& id, ConstBufferRef bytes, Done done) {
  if (staging_ == nullptr || bytes.size == 0) {
    return Post(MessageKind::kEdgeFrame, Pack(HeaderOf(id)), std::move(bytes), std::move(done));
  }
  OfferHeader header{kOffer, 0, bytes.size, HeaderOf(id)};
  absl::Status why;
  {
    MutexLock lock(mu_);
    why = why_;
    if (why.ok()) {
      header.number = next_++;
      offered_.emplace(header.number, Offer{std::move(bytes), std::move(done)});
    }
  }
  if (!why.ok()) return done(why);
  Post(MessageKind::kEdgeOffer, Pack(header), ConstBufferRef(), Ignore);
}

void MessageWire::OnFrame(std::string_view header, std::shared_ptr<MessagePayload> payload) {
  FrameHeader frame;
  const auto core = core_.lock();
  if (core == nullptr || !Unpack(header, frame)) return;
  core->OnFrame(IdOf(frame), std::make_shared<Frame>(shared_from_this(), std::move(payload)));
}

void MessageWire::OnControl(std::string_view header) {
  ControlHeader control;
  const auto core = core_.lock();
  if (core == nullptr || !Unpack(header, control)) return;
  core->OnControl({static_cast<EdgeControl::Kind>(control.kind), control.job, control.frames,
                   static_cast<absl::StatusCode>(control.status)});
}

void MessageWire::OnOffer(std::string_view header) {
  OfferHeader offer;
  const auto core = core_.lock();
  if (core == nullptr || !Unpack(header, offer)) return;
  if (offer.kind == kOffer) {
    core->OnFrame(IdOf(offer.frame), std::make_shared<Offered>(shared_from_this(), offer.number, offer.size));
  } else if (offer.kind == kWanted) {
    OnWanted(offer.number);
  } else if (offer.kind == kSkipped) {
    OnSkipped(offer.number);
  }
}

std::optional<MessageWire::Offer> MessageWire::TakeOffer(uint64_t number) {
  MutexLock lock(mu_);
  const auto found = offered_.find(number);
  if (found == offered_.end()) return std::nullopt;
  Offer offer = std::move(found->second);
  offered_.erase(found);
  return offer;
}

void MessageWire::OnSkipped(uint64_t number) {
  const std::optional<Offer> offer = TakeOffer(number);
  if (offer.has_value()) offer->done(absl::CancelledError("the peer discarded the frame"));
}

void MessageWire::OnWanted(uint64_t number) {
  std::optional<Offer> offer = TakeOffer(number);
  if (offer.has_value()) SendStaged(number, *std::move(offer));
}

void MessageWire::SendStaged(uint64_t number, Offer offer) {
  const size_t size = offer.bytes.size;
  OnRoom send = [self = shared_from_this(), number, bytes = std::move(offer.bytes)](const BufferRef& room,
                                                                                    Done end) mutable {
    self->staging_->sending->Copy(
        std::move(bytes), room,
        [self, number, room = BufferRef(room), end = std::move(end)](const absl::Status& status) mutable {
          if (status.ok()) {
            return self->Post(MessageKind::kEdgeBytes, Pack(BytesHeader{number}), std::move(room), end);
          }
          room = {};
          end(status);
        });
  };
  TakeRoom(staging_->sending, size, std::move(offer.done), std::move(send));
}

void MessageWire::Want(uint64_t number, Wanted wanted) {
  absl::Status why;
  {
    MutexLock lock(mu_);
    why = why_;
    // Two offers of one number: the peer is broken.
    if (why.ok() && !wanted_.try_emplace(number, wanted).second)
      why = absl::UnavailableError("a frame's number is taken");
  }
  if (!why.ok()) return wanted.done(why, {});
  Post(MessageKind::kEdgeOffer, Pack(OfferHeader{kWanted, number, 0, {}}), ConstBufferRef(), Ignore);
}

void MessageWire::OnBytes(std::string_view header, std::shared_ptr<MessagePayload> payload) {
  BytesHeader bytes;
  if (!Unpack(header, bytes)) return;
  Wanted wanted;
  {
    MutexLock lock(mu_);
    const auto found = wanted_.find(bytes.number);
    if (found == wanted_.end()) return;
    wanted = std::move(found->second);
    wanted_.erase(found);
  }
  if (payload->size() != wanted.into.size) {
    return wanted.done(absl::UnavailableError("the peer sent another frame than it offered"), {});
  }
  Frame(shared_from_this(), std::move(payload)).Accept(std::move(wanted.into), std::move(wanted.done));
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
        ++with_room_;
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
    MutexLock lock(self->mu_);
    --self->with_room_;
    self->ended_.NotifyAll();
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
    for (auto& [number, offer] : offered_) failed.push_back(std::move(offer.done));
    for (auto& [number, wanted] : wanted_) failed.push_back(Failing(std::move(wanted.done)));
    for (auto& [number, waits] : waiting_) waiting.push_back(std::move(waits));
    offered_.clear();
    wanted_.clear();
    waiting_.clear();
  }
  for (const Done& done : failed) done(why);
  for (const WaitingForRoom& waits : waiting) {
    waits.lane->Cancel(waits.request);
    waits.done(why);
  }
  MutexLock lock(mu_);
  with_room_ -= static_cast<int>(waiting.size());
  ended_.NotifyAll();
}

void MessageWire::AwaitEnd() {
  MutexLock lock(mu_);
  while (with_room_ > 0) ended_.Wait(mu_);
}

}  // namespace runahead
