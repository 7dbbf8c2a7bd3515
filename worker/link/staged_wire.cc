#include "worker/link/staged_wire.h"

#include <utility>
#include <vector>

namespace runahead {

// A frame that has come, or is announced, over the wire beneath.
class StagedWire::Frame final : public ArrivedFrame {
 public:
  Frame(std::shared_ptr<StagedWire> wire, std::shared_ptr<ArrivedFrame> frame)
      : wire_(std::move(wire)), frame_(std::move(frame)) {}
  size_t size() const override { return frame_->size(); }
  void Accept(BufferRef into, Done done) override {
    if (into.size == 0) return frame_->Accept(std::move(into), std::move(done));
    const size_t size = into.size;
    OnRoom receive = [lane = wire_->receiving_, frame = std::move(frame_), into = std::move(into)](
                         const BufferRef& room, Done end) mutable {
      frame->Accept(room, [lane, room = BufferRef(room), into = std::move(into),
                           end = std::move(end)](const absl::Status& status) mutable {
        if (status.ok()) return lane->Copy(std::move(room), std::move(into), end);
        room = into = {};
        end(status);
      });
    };
    wire_->TakeRoom(wire_->receiving_, size, std::move(done), std::move(receive));
  }

 private:
  const std::shared_ptr<StagedWire> wire_;
  std::shared_ptr<ArrivedFrame> frame_;
};

std::shared_ptr<ArrivedFrame> StagedWire::Receive(std::shared_ptr<ArrivedFrame> frame) {
  return std::make_shared<Frame>(shared_from_this(), std::move(frame));
}

void StagedWire::SendFrame(const FrameId& id, ConstBufferRef bytes, Done done) {
  if (bytes.size == 0) return inner_->SendFrame(id, std::move(bytes), std::move(done));
  const size_t size = bytes.size;
  OnRoom send = [inner = inner_, lane = sending_, id, bytes = std::move(bytes)](const BufferRef& room,
                                                                                Done end) mutable {
    lane->Copy(std::move(bytes), room,
               [inner, id, room = BufferRef(room), end = std::move(end)](const absl::Status& status) mutable {
                 if (status.ok()) return inner->SendFrame(id, std::move(room), end);
                 room = {};
                 end(status);
               });
  };
  TakeRoom(sending_, size, std::move(done), std::move(send));
}

void StagedWire::TakeRoom(const std::shared_ptr<StagingLane>& lane, size_t bytes, Done done, OnRoom next) {
  absl::Status refused;
  {
    MutexLock lock(mu_);
    refused = why_;
    if (refused.ok()) {
      const uint64_t number = next_++;
      const uint64_t ticket =
          lane->Request(bytes, [self = shared_from_this(), number, next = std::move(next)](
                                   absl::StatusOr<BufferRef> room) { self->Granted(number, std::move(room), next); });
      if (ticket != 0) {
        ++under_way_;
        waiting_.emplace(number, Waiting{lane, ticket, std::move(done)});
        return;
      }
      refused = absl::UnavailableError("the link has stopped");
    }
  }
  done(refused);
}

void StagedWire::Granted(uint64_t number, absl::StatusOr<BufferRef> room, const OnRoom& next) {
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
    --self->under_way_;
    self->ended_.NotifyAll();
  };
  if (!room.ok()) {
    // A frame that the core has announced cannot be taken back.
    if (const auto core = core_.lock()) core->Die(absl::UnavailableError(room.status().message()));
    return counted(room.status());
  }
  next(*room, std::move(counted));
}

void StagedWire::Fail(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, Waiting> failed;
  {
    MutexLock lock(mu_);
    if (why_.ok()) why_ = why;
    failed.swap(waiting_);
  }
  for (auto& [number, waiting] : failed) {
    waiting.lane->Cancel(waiting.ticket);
    waiting.done(why);
  }
  MutexLock lock(mu_);
  under_way_ -= static_cast<int>(failed.size());
  ended_.NotifyAll();
}

void StagedWire::AwaitEnd() {
  MutexLock lock(mu_);
  while (under_way_ > 0) ended_.Wait(mu_);
}

}  // namespace runahead
