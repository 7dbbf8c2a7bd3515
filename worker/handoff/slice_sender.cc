#include "worker/handoff/slice_sender.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "worker/handoff/slice.h"

namespace runahead {

HandoffSenderOptions CountedBy(PrefillMetrics& metrics) {
  HandoffSenderOptions options{.on_retry = [&metrics] { metrics.CountHandoffRetry(); }};
  options.on_accepted = [&metrics](const Slice& slice, size_t bytes, absl::Duration took) {
    metrics.ObserveHandoff(took);
    metrics.CountHandoffBytes(slice.kind == SliceKind::kKv ? HandoffKind::kKv : HandoffKind::kX,
                              static_cast<int64_t>(bytes));
  };
  return options;
}

// Shared with the callbacks under way. Events fire without the lock.
class SliceSender::State : public std::enable_shared_from_this<SliceSender::State> {
 public:
  State(std::shared_ptr<SliceTransport> transport, HandoffSenderOptions options)
      : transport_(std::move(transport)), options_(std::move(options)) {}

  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after)
      RUNAHEAD_EXCLUDES(mu_) {
    EventSource source;
    uint64_t number = 0;
    {
      MutexLock lock(mu_);
      number = next_++;
      pushes_.emplace(number, Pending{decode, slice, std::move(bytes), source});
    }
    after.OnFire([state = shared_from_this(), number](const absl::Status& status) { state->Ready(number, status); });
    return source.event();
  }

  void Cancel(const std::function<bool(const LeaseId&)>& meant) RUNAHEAD_EXCLUDES(mu_) {
    std::vector<Pending> cancelled;
    {
      MutexLock lock(mu_);
      for (auto it = pushes_.begin(); it != pushes_.end();) {
        const auto push = it++;
        if (!meant(push->second.slice.lease)) continue;
        push->second.cancelled = true;
        if (push->second.on_wire) continue;
        cancelled.push_back(std::move(push->second));
        pushes_.erase(push);
      }
    }
    for (const Pending& push : cancelled) push.source.Fire(Cancelled(push.slice));
  }

  // After everything was cancelled: returns when no callback is under way.
  void Stop() RUNAHEAD_EXCLUDES(mu_) {
    transport_->Stop();
    MutexLock lock(mu_);
    while (!pushes_.empty()) answered_.Wait(mu_);
  }

 private:
  struct Pending {
    PeerId decode;
    Slice slice;
    ConstBufferRef bytes;
    EventSource source;
    absl::Time ready = {};  // it is computed
    bool on_wire = false;
    bool cancelled = false;
  };

  static absl::Status Cancelled(const Slice& slice) {
    return absl::CancelledError(absl::StrCat("the hand-off of ", Describe(slice), " was cancelled"));
  }

  void Ready(uint64_t number, const absl::Status& after) RUNAHEAD_EXCLUDES(mu_) {
    std::optional<Pending> failed;
    PeerId decode;
    Slice slice;
    Outbound bytes;
    {
      MutexLock lock(mu_);
      const auto push = pushes_.find(number);
      if (push == pushes_.end()) return;  // cancelled: it has fired
      if (after.ok()) {
        push->second.ready = MonotonicNow();
        push->second.on_wire = true;
        decode = push->second.decode;
        slice = push->second.slice;
        bytes = Outbound(std::move(push->second.bytes));
      } else {
        failed = std::move(push->second);
        pushes_.erase(push);
      }
    }
    if (failed.has_value()) {
      failed->source.Fire(after);
      return;
    }
    bytes.seed = SeedOf(slice);
    bytes.lane = options_.lane;
    bytes.on_again = options_.on_retry;
    const size_t size = bytes.bytes.size;
    transport_->Send(decode, slice, std::move(bytes),
                     [state = shared_from_this(), number, size](const absl::Status& verdict) {
                       state->Answered(number, size, verdict);
                     });
  }

  // The push is known until its event has fired: Stop waits for that.
  void Answered(uint64_t number, size_t bytes, const absl::Status& verdict) RUNAHEAD_EXCLUDES(mu_) {
    std::optional<Pending> done;
    {
      MutexLock lock(mu_);
      done = std::move(pushes_.at(number));
    }
    if (verdict.ok() && options_.on_accepted) options_.on_accepted(done->slice, bytes, MonotonicNow() - done->ready);
    done->source.Fire(ToStatus(*done, bytes, verdict));
    MutexLock lock(mu_);
    pushes_.erase(number);
    answered_.NotifyAll();
  }

  static absl::Status ToStatus(const Pending& push, size_t bytes, const absl::Status& verdict) {
    const std::string slice = Describe(push.slice);
    switch (verdict.code()) {
      case absl::StatusCode::kOk:
      case absl::StatusCode::kUnavailable:
        return verdict;
      case absl::StatusCode::kDataLoss:
        if (push.cancelled) return Cancelled(push.slice);
        return absl::DataLossError(absl::StrCat(slice, " arrived corrupt ", kTransferAttempts, " times"));
      case absl::StatusCode::kNotFound:
        return absl::NotFoundError(absl::StrCat(slice, ": the decode worker has no such lease (any more)"));
      case absl::StatusCode::kFailedPrecondition:
        return absl::FailedPreconditionError(
            absl::StrCat("dtype: ", slice, " comes in ", std::string(RowFormName(push.slice.form)),
                         ", and the decode worker takes another: both must compute in the same dtype, with the same "
                         "kv_dtype, and be of one build"));
      case absl::StatusCode::kCancelled:
        return absl::UnavailableError(absl::StrCat(slice, ": the decode worker takes no slices now"));
      case absl::StatusCode::kResourceExhausted:
        return absl::ResourceExhaustedError(
            absl::StrCat(slice, ": this worker has no memory to bring it out of the device: ", verdict.message()));
      case absl::StatusCode::kOutOfRange:
        return absl::OutOfRangeError(
            absl::StrCat(slice, " with ", bytes, " bytes does not fit the lease or kind of the decode worker"));
      default:
        return absl::UnavailableError(absl::StrCat(slice, ": ", verdict.message()));
    }
  }

  const std::shared_ptr<SliceTransport> transport_;
  const HandoffSenderOptions options_;
  Mutex mu_;
  CondVar answered_;
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, Pending> pushes_ RUNAHEAD_GUARDED_BY(mu_);
};

SliceSender::SliceSender(std::shared_ptr<SliceTransport> transport, HandoffSenderOptions options)
    : state_(std::make_shared<State>(std::move(transport), std::move(options))) {}

SliceSender::~SliceSender() {
  state_->Cancel([](const LeaseId&) { return true; });
  state_->Stop();
}

Event SliceSender::Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) {
  return state_->Push(decode, slice, std::move(bytes), after);
}

void SliceSender::Cancel(const LeaseId& lease) {
  state_->Cancel([&lease](const LeaseId& other) { return other == lease; });
}

}  // namespace runahead
