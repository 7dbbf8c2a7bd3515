#include "worker/handoff/retrying_sender.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/base/task_thread.h"

namespace runahead {

// Shared with the callbacks under way. Events fire without the lock.
class RetryingSender::State : public std::enable_shared_from_this<RetryingSender::State> {
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
      pushes_.emplace(number, Pending{decode, {slice, 0, bytes.size, 0}, std::move(bytes), source, false, false});
    }
    after.OnFire([state = shared_from_this(), number](const absl::Status& status) { state->Ready(number, status); });
    return source.event();
  }

  void Cancel(const std::function<bool(const LeaseId&)>& meant, bool stopping) RUNAHEAD_EXCLUDES(mu_) {
    std::vector<Pending> cancelled;
    {
      MutexLock lock(mu_);
      stopped_ = stopped_ || stopping;
      for (auto it = pushes_.begin(); it != pushes_.end();) {
        const auto push = it++;
        if (!meant(push->second.header.slice.lease)) continue;
        push->second.cancelled = true;
        if (push->second.on_wire) continue;
        cancelled.push_back(std::move(push->second));
        pushes_.erase(push);
      }
    }
    for (const Pending& push : cancelled) push.source.Fire(Cancelled(push.header.slice));
  }

  // After everything was cancelled: returns when no callback is under way.
  void Stop() RUNAHEAD_EXCLUDES(mu_) {
    std::unique_ptr<TaskThread> hashing;
    {
      MutexLock lock(mu_);
      hashing = std::move(hashing_);
    }
    hashing.reset();
    transport_->Stop();
    MutexLock lock(mu_);
    while (!pushes_.empty()) answered_.Wait(mu_);
  }

 private:
  struct Pending {
    PeerId decode;
    SliceHeader header;
    ConstBufferRef bytes;
    EventSource source;
    bool on_wire = false;
    bool cancelled = false;
  };

  static absl::Status Cancelled(const Slice& slice) {
    return absl::CancelledError(absl::StrCat("the hand-off of ", Describe(slice), " was cancelled"));
  }

  void Ready(uint64_t number, const absl::Status& after) RUNAHEAD_EXCLUDES(mu_) {
    std::optional<Pending> failed;
    {
      MutexLock lock(mu_);
      const auto push = pushes_.find(number);
      if (push == pushes_.end()) return;  // cancelled: it has fired
      if (after.ok() && hashing_ != nullptr) {
        ProgressMeter* const progress = options_.progress.get();
        if (progress != nullptr) progress->Begin(static_cast<double>(push->second.bytes.size));
        hashing_->Post([state = shared_from_this(), number, bytes = push->second.bytes, progress] {
          const uint64_t hash = HashPieces({bytes});
          if (progress != nullptr) progress->End();
          state->Hashed(number, hash);
        });
        return;
      }
      failed = std::move(push->second);
      pushes_.erase(push);
    }
    failed->source.Fire(after.ok() ? Cancelled(failed->header.slice) : after);
  }

  void Hashed(uint64_t number, uint64_t hash) RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      const auto push = pushes_.find(number);
      if (push == pushes_.end()) return;
      push->second.header.xxh64 = hash;
      push->second.on_wire = true;
    }
    Attempt(number);
  }

  void Attempt(uint64_t number) RUNAHEAD_EXCLUDES(mu_) {
    PeerId decode;
    SliceHeader header;
    ConstBufferRef bytes;
    {
      MutexLock lock(mu_);
      Pending& push = pushes_.at(number);
      ++push.header.attempt;
      decode = push.decode;
      header = push.header;
      bytes = push.bytes;
    }
    if (options_.faults != nullptr) bytes = options_.faults->Tamper(std::move(bytes));
    transport_->Send(decode, header, std::move(bytes),
                     [state = shared_from_this(), number](absl::StatusOr<SliceVerdict> verdict) {
                       state->Answered(number, std::move(verdict));
                     });
  }

  void Answered(uint64_t number, absl::StatusOr<SliceVerdict> verdict) RUNAHEAD_EXCLUDES(mu_) {
    std::optional<Pending> done;
    {
      MutexLock lock(mu_);
      const auto push = pushes_.find(number);
      const bool again = verdict.ok() && *verdict == SliceVerdict::kCorrupt && !push->second.cancelled && !stopped_ &&
                         push->second.header.attempt < kSliceAttempts;
      if (!again) {
        done = std::move(push->second);
        pushes_.erase(push);
        answered_.NotifyAll();
      }
    }
    if (!done.has_value()) {
      if (options_.on_retry) options_.on_retry();
      return Attempt(number);
    }
    done->bytes = {};
    done->source.Fire(ToStatus(*done, verdict));
  }

  static absl::Status ToStatus(const Pending& push, const absl::StatusOr<SliceVerdict>& verdict) {
    if (!verdict.ok()) return verdict.status();
    const std::string slice = Describe(push.header.slice);
    switch (*verdict) {
      case SliceVerdict::kAccepted:
        return absl::OkStatus();
      case SliceVerdict::kCorrupt:
        if (push.cancelled) return Cancelled(push.header.slice);
        return absl::DataLossError(absl::StrCat(slice, " arrived corrupt ", push.header.attempt, " times"));
      case SliceVerdict::kNoLease:
        return absl::NotFoundError(absl::StrCat(slice, ": the decode worker has no such lease (any more)"));
      case SliceVerdict::kBadForm:
        return absl::FailedPreconditionError(
            absl::StrCat("dtype: ", slice, " comes in ", std::string(RowFormName(push.header.slice.form)),
                         ", and the decode worker takes another: both must compute in the same dtype, with the same "
                         "kv_dtype, and be of one build"));
      case SliceVerdict::kBadRange:
        break;
    }
    return absl::OutOfRangeError(
        absl::StrCat(slice, " with ", push.header.bytes, " bytes does not fit the lease or kind of the decode worker"));
  }

  const std::shared_ptr<SliceTransport> transport_;
  const HandoffSenderOptions options_;
  Mutex mu_;
  CondVar answered_;
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 1;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, Pending> pushes_ RUNAHEAD_GUARDED_BY(mu_);
  std::unique_ptr<TaskThread> hashing_ RUNAHEAD_GUARDED_BY(mu_) = std::make_unique<TaskThread>();
};

RetryingSender::RetryingSender(std::shared_ptr<SliceTransport> transport, HandoffSenderOptions options)
    : state_(std::make_shared<State>(std::move(transport), std::move(options))) {}

RetryingSender::~RetryingSender() {
  state_->Cancel([](const LeaseId&) { return true; }, /*stopping=*/true);
  state_->Stop();
}

Event RetryingSender::Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) {
  return state_->Push(decode, slice, std::move(bytes), after);
}

void RetryingSender::Cancel(const LeaseId& lease) {
  state_->Cancel([&lease](const LeaseId& other) { return other == lease; }, /*stopping=*/false);
}

}  // namespace runahead
