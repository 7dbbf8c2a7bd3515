#include "worker/link/staged_send.h"

#include <optional>
#include <utility>

#include "kernels/base/mutex.h"

namespace runahead {
namespace {

// Bytes whose place is found later: until Bind nobody may look at them.
class LateBuffer final : public Buffer {
 public:
  explicit LateBuffer(size_t size) : Buffer(nullptr, size) {}
  void Bind(std::byte* place) { data_ = place; }
};

class StagedSend : public std::enable_shared_from_this<StagedSend> {
 public:
  StagedSend(std::shared_ptr<StagingLane> lane, ConstBufferRef bytes)
      : lane_(std::move(lane)), late_(std::make_shared<LateBuffer>(bytes.size)), bytes_(std::move(bytes)) {}

  ConstBufferRef staged() const { return BufferRef::Whole(late_); }
  Event ready() const { return ready_.event(); }
  Event done() const { return done_.event(); }

  // The bytes are there to be copied.
  void OnAfter(const absl::Status& after) RUNAHEAD_EXCLUDES(mu_) {
    bool stopped = false;
    if (after.ok()) {
      MutexLock lock(mu_);
      if (sent_.has_value()) return;  // cancelled meanwhile
      ticket_ = lane_->Request(
          bytes_.size, [self = shared_from_this()](absl::StatusOr<BufferRef> room) { self->OnRoom(std::move(room)); });
      stopped = ticket_ == 0;
    }
    if (!after.ok()) ready_.Fire(after);
    if (stopped) ready_.Fire(absl::UnavailableError("the link has stopped"));
  }

  // The other side of `send` is done with the staged bytes, or never wants them.
  void OnSent(const absl::Status& status) RUNAHEAD_EXCLUDES(mu_) {
    uint64_t waits = 0;
    {
      MutexLock lock(mu_);
      sent_ = status;
      if (copying_) return;
      waits = ticket_;
    }
    if (waits != 0) lane_->Cancel(waits);
    Finish();
  }

 private:
  void OnRoom(absl::StatusOr<BufferRef> room) RUNAHEAD_EXCLUDES(mu_) {
    if (room.ok()) {
      MutexLock lock(mu_);
      if (sent_.has_value()) return;
      copying_ = true;
      room_ = *room;
      late_->Bind(room_.data());
      lane_->Copy(bytes_, room_, [self = shared_from_this()](const absl::Status& status) { self->OnCopied(status); });
      return;
    }
    ready_.Fire(room.status());
  }

  void OnCopied(const absl::Status& status) RUNAHEAD_EXCLUDES(mu_) {
    bool cancelled = false;
    {
      MutexLock lock(mu_);
      copying_ = false;
      cancelled = sent_.has_value();
    }
    if (cancelled) return Finish();
    ready_.Fire(status);
  }

  void Finish() RUNAHEAD_EXCLUDES(mu_) {
    BufferRef room;
    ConstBufferRef bytes;
    absl::Status status;
    {
      MutexLock lock(mu_);
      room = std::move(room_);
      bytes = std::move(bytes_);
      status = *sent_;
    }
    room = {};
    bytes = {};
    done_.Fire(status);
  }

  const std::shared_ptr<StagingLane> lane_;
  const std::shared_ptr<LateBuffer> late_;
  const EventSource ready_, done_;
  Mutex mu_;
  ConstBufferRef bytes_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t ticket_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool copying_ RUNAHEAD_GUARDED_BY(mu_) = false;
  BufferRef room_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<absl::Status> sent_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace

Event SendStaged(const std::shared_ptr<StagingLane>& lane, ConstBufferRef bytes, const Event& after,
                 const std::function<Event(ConstBufferRef, const Event&)>& send) {
  if (bytes.size == 0) return send(std::move(bytes), after);
  auto staged = std::make_shared<StagedSend>(lane, std::move(bytes));
  send(staged->staged(), staged->ready()).OnFire([staged](const absl::Status& status) { staged->OnSent(status); });
  after.OnFire([staged](const absl::Status& status) { staged->OnAfter(status); });
  return staged->done();
}

}  // namespace runahead
