#include "worker/handoff/staged_handoff.h"

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

class StagedPush : public std::enable_shared_from_this<StagedPush> {
 public:
  StagedPush(std::shared_ptr<StagingLane> lane, ConstBufferRef bytes)
      : lane_(std::move(lane)), late_(std::make_shared<LateBuffer>(bytes.size)), bytes_(std::move(bytes)) {}

  ConstBufferRef staged() const { return BufferRef::Whole(late_); }
  Event ready() const { return ready_.event(); }
  Event done() const { return done_.event(); }

  // The bytes are there to be copied.
  void OnAfter(const absl::Status& after) RUNAHEAD_EXCLUDES(mu_) {
    bool stopped = false;
    if (after.ok()) {
      MutexLock lock(mu_);
      if (pushed_.has_value()) return;  // cancelled meanwhile
      request_ = lane_->Request(
          bytes_.size, [self = shared_from_this()](absl::StatusOr<BufferRef> room) { self->OnRoom(std::move(room)); });
      stopped = request_ == 0;
    }
    if (!after.ok()) ready_.Fire(after);
    if (stopped) ready_.Fire(absl::UnavailableError("the hand-off has stopped"));
  }

  // The inner sender is done with the staged bytes, or never wants them.
  void OnPushed(const absl::Status& status) RUNAHEAD_EXCLUDES(mu_) {
    uint64_t waits = 0;
    {
      MutexLock lock(mu_);
      pushed_ = status;
      if (copying_) return;
      waits = request_;
    }
    if (waits != 0) lane_->Cancel(waits);
    Finish();
  }

 private:
  void OnRoom(absl::StatusOr<BufferRef> room) RUNAHEAD_EXCLUDES(mu_) {
    if (room.ok()) {
      MutexLock lock(mu_);
      if (pushed_.has_value()) return;
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
      cancelled = pushed_.has_value();
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
      status = *pushed_;
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
  uint64_t request_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool copying_ RUNAHEAD_GUARDED_BY(mu_) = false;
  BufferRef room_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<absl::Status> pushed_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace

StagedHandoff::StagedHandoff(std::unique_ptr<HandoffSender> inner, Device& device, size_t staging_bytes)
    : lane_(StagingLane::Create(device, "handoff", staging_bytes)), inner_(std::move(inner)) {
  lane_->Prepare();
}

StagedHandoff::~StagedHandoff() {
  inner_.reset();  // first: everything fires
  lane_->Stop();
}

Event StagedHandoff::Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) {
  if (bytes.size == 0) return inner_->Push(decode, slice, std::move(bytes), after);
  auto push = std::make_shared<StagedPush>(lane_, std::move(bytes));
  inner_->Push(decode, slice, push->staged(), push->ready()).OnFire([push](const absl::Status& status) {
    push->OnPushed(status);
  });
  after.OnFire([push](const absl::Status& status) { push->OnAfter(status); });
  return push->done();
}

}  // namespace runahead
