#include <memory>
#include <utility>

#include "kernels/base/mutex.h"
#include "worker/handoff/message_handoff.h"

namespace runahead {
namespace {

class MessageSliceTransport final : public SliceTransport, public std::enable_shared_from_this<MessageSliceTransport> {
 public:
  MessageSliceTransport(MessageEngine& engine, MessageKind kind) : engine_(engine), kind_(kind) {}

  // An offered slice must be sent, so its staging memory is there before the offer. A slice without bytes needs none.
  void Send(const PeerId& to, const Slice& slice, Outbound bytes, Done done) override {
    const std::shared_ptr<StagingLane> lane = bytes.bytes.size > 0 ? bytes.lane : nullptr;
    if (lane == nullptr) return Offer(to, slice, std::move(bytes), std::move(done));
    lane->Prepare([self = shared_from_this(), to, slice, bytes = std::move(bytes),
                   done = std::move(done)](const absl::Status& memory) mutable {
      if (memory.ok()) return self->Offer(to, slice, std::move(bytes), std::move(done));
      bytes = {};
      done(memory);
    });
  }

  // Closes what slices went over, which ends them.
  void Stop() override RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      stopped_ = true;
    }
    engine_.CloseAll(IsOfHandoff);
  }

 private:
  void Offer(const PeerId& to, const Slice& slice, Outbound bytes, Done done) RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);  // held while it is handed to the engine, so that none follows Stop
      if (!stopped_) return engine_.Send(to, kind_, PackSlice(slice), std::move(bytes), std::move(done));
    }
    bytes = {};
    done(absl::UnavailableError("the hand-off has stopped"));
  }

  MessageEngine& engine_;
  const MessageKind kind_;
  Mutex mu_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

}  // namespace

std::string PackSlice(const Slice& slice) {
  SliceWire wire;
  wire.lease_incarnation = slice.lease.incarnation;
  wire.lease_number = slice.lease.number;
  wire.lease_epoch = slice.lease.epoch;
  wire.begin = slice.begin;
  wire.end = slice.end;
  wire.layer = slice.layer;
  wire.kind = static_cast<uint8_t>(slice.kind);
  wire.form = static_cast<uint8_t>(slice.form);
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}

std::optional<Slice> UnpackSlice(std::string_view header) {
  SliceWire wire;
  if (header.size() != sizeof(wire)) return std::nullopt;
  std::memcpy(&wire, header.data(), sizeof(wire));
  Slice slice;
  slice.lease = {wire.lease_incarnation, wire.lease_number, static_cast<uint32_t>(wire.lease_epoch)};
  slice.layer = wire.layer;
  slice.begin = wire.begin;
  slice.end = wire.end;
  slice.kind = static_cast<SliceKind>(wire.kind);
  slice.form = static_cast<RowForm>(wire.form);
  return slice;
}

std::shared_ptr<SliceTransport> MakeMessageSliceTransport(MessageEngine& engine, MessageKind kind) {
  return std::make_shared<MessageSliceTransport>(engine, kind);
}

}  // namespace runahead
