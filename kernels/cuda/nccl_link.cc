#include "kernels/cuda/nccl_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr size_t kIdBytes = 128;
// The first transfer of a communicator connects it and loads NCCL's kernel.
constexpr size_t kFirstBytes = 256;
// Transfers in the stream at once: two keep it busy, and none beyond them can block the thread in a full launch queue.
constexpr size_t kMostMoving = 16;
// How often is looked: while the peer joins, while something moves, and for errors while nothing does.
constexpr absl::Duration kJoinPause = absl::Milliseconds(1);
constexpr absl::Duration kMovePause = absl::Microseconds(20);
constexpr absl::Duration kIdlePause = absl::Milliseconds(100);

absl::Status Ended() {
  return absl::UnavailableError("the link between the GPUs was ended here");
}

}  // namespace

NcclLink::NcclLink(NcclApi& api, std::string id, PeerRank rank, const NcclTimes& times)
    : api_(api), id_(std::move(id)), rank_(rank), times_(times), thread_([this] { Run(); }) {}

NcclLink::~NcclLink() {
  {
    MutexLock lock(mu_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

absl::Status NcclLink::Health() const {
  MutexLock lock(mu_);
  return health_;
}

Event NcclLink::Enqueue(PeerRank as, BufferRef ref) {
  if (ref.size == 0) return Event();
  EventSource source;
  absl::Status refused;
  {
    MutexLock lock(mu_);
    refused = as == rank_ ? health_ : absl::InvalidArgumentError("one rank sends, the other receives");
    if (refused.ok()) {
      queue_.push_back({std::move(ref), source});
      changed_.NotifyAll();
    }
  }
  if (!refused.ok()) source.Fire(refused);
  return source.event();
}

absl::Status NcclLink::Pause(absl::Duration time) {
  MutexLock lock(mu_);
  if (!ending_) changed_.WaitFor(mu_, time);
  return ending_ ? Ended() : absl::OkStatus();
}

void NcclLink::Run() {
  absl::Status status = Establish();
  if (status.ok()) {
    ready_.Fire(absl::OkStatus());
    status = Serve();
  }
  End(std::move(status));
}

absl::Status NcclLink::Establish() {
  const absl::Time deadline = absl::Now() + times_.ready;
  RUNAHEAD_RETURN_IF_ERROR(api_.EnterThread());
  RUNAHEAD_ASSIGN_OR_RETURN(stream_, api_.NewStream());
  RUNAHEAD_ASSIGN_OR_RETURN(scratch_, api_.NewScratch(kFirstBytes, stream_));
  RUNAHEAD_ASSIGN_OR_RETURN(comm_, api_.Init(id_, static_cast<int>(rank_)));
  RUNAHEAD_RETURN_IF_ERROR(AwaitSettled(deadline, "the peer's GPU to join"));
  // Before any frame: loading a kernel may wait for kernels that run, which may be waiting for this one.
  RUNAHEAD_RETURN_IF_ERROR(Start(scratch_, kFirstBytes, deadline));
  RUNAHEAD_ASSIGN_OR_RETURN(const NcclApi::Mark mark, api_.Record(stream_));
  moving_.push_back({BufferRef(), EventSource(), mark});
  for (;;) {
    RUNAHEAD_RETURN_IF_ERROR(FirePassed().status());
    if (moving_.empty()) return absl::OkStatus();
    RUNAHEAD_RETURN_IF_ERROR(api_.Settled(comm_).status());
    if (absl::Now() >= deadline) return absl::UnavailableError("no byte came through the link between the GPUs");
    RUNAHEAD_RETURN_IF_ERROR(Pause(kJoinPause));
  }
}

absl::Status NcclLink::Serve() {
  for (;;) {
    Transfer next;
    {
      MutexLock lock(mu_);
      if (ending_) return Ended();
      if (!queue_.empty() && moving_.size() < kMostMoving) {
        next = std::move(queue_.front());
        queue_.pop_front();
      }
    }
    const bool submits = next.ref.buffer != nullptr;
    if (submits) RUNAHEAD_RETURN_IF_ERROR(Submit(std::move(next)));
    RUNAHEAD_ASSIGN_OR_RETURN(const bool passed, FirePassed());
    if (submits || passed) continue;
    RUNAHEAD_RETURN_IF_ERROR(api_.Settled(comm_).status());
    MutexLock lock(mu_);
    const bool waits = queue_.empty() || moving_.size() >= kMostMoving;
    if (waits && !ending_) changed_.WaitFor(mu_, moving_.empty() ? kIdlePause : kMovePause);
  }
}

absl::Status NcclLink::Submit(Transfer transfer) {
  std::byte* const memory = transfer.ref.data();
  const size_t size = transfer.ref.size;
  moving_.push_back(std::move(transfer));  // also where it fails: it may be in the stream
  RUNAHEAD_RETURN_IF_ERROR(Start(memory, size, absl::Now() + times_.enqueue));
  RUNAHEAD_ASSIGN_OR_RETURN(moving_.back().mark, api_.Record(stream_));
  return absl::OkStatus();
}

absl::Status NcclLink::Start(void* memory, size_t size, absl::Time deadline) {
  RUNAHEAD_RETURN_IF_ERROR(rank_ == PeerRank::kSender ? api_.Send(comm_, memory, size, stream_)
                                                      : api_.Recv(comm_, memory, size, stream_));
  return AwaitSettled(deadline, "a transfer to be put into the GPU's queue");
}

absl::Status NcclLink::AwaitSettled(absl::Time deadline, const char* what) {
  for (;;) {
    RUNAHEAD_ASSIGN_OR_RETURN(const bool settled, api_.Settled(comm_));
    if (settled) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::UnavailableError(absl::StrCat("the time is over that was given for ", what));
    }
    RUNAHEAD_RETURN_IF_ERROR(Pause(ready_.event().fired() ? kMovePause : kJoinPause));
  }
}

absl::StatusOr<bool> NcclLink::FirePassed() {
  bool any = false;
  while (!moving_.empty()) {
    RUNAHEAD_ASSIGN_OR_RETURN(const bool passed, api_.Passed(moving_.front().mark));
    if (!passed) break;
    any = true;
    Transfer done = std::move(moving_.front());
    moving_.pop_front();
    api_.EndMark(done.mark);
    done.ref = {};
    done.source.Fire(absl::OkStatus());
  }
  return any;
}

// Buffers are let go, and events fire, when no kernel touches them any more.
void NcclLink::End(absl::Status why) {
  std::deque<Transfer> queued;
  {
    MutexLock lock(mu_);
    health_ = why;
    queued.swap(queue_);
  }
  if (comm_ != nullptr && !(moving_.empty() && queued.empty() && ready_.event().fired() && Finalize())) {
    api_.Abort(comm_);
    AwaitKernels();
  }
  if (scratch_ != nullptr) api_.EndScratch(scratch_, stream_);
  if (stream_ != nullptr) api_.EndStream(stream_);
  ready_.Fire(why);
  for (std::deque<Transfer>* transfers : {&moving_, &queued}) {
    for (; !transfers->empty(); transfers->pop_front()) {
      Transfer& transfer = transfers->front();
      if (transfer.mark != nullptr) api_.EndMark(transfer.mark);
      transfer.ref = {};
      transfer.source.Fire(why);
    }
  }
}

bool NcclLink::Finalize() {
  // One that has failed cannot end in order.
  const absl::StatusOr<bool> healthy = api_.Settled(comm_);
  if (!healthy.ok() || !*healthy || !api_.Finalize(comm_).ok()) return false;
  for (const absl::Time deadline = absl::Now() + times_.end;; absl::SleepFor(kJoinPause)) {
    const absl::StatusOr<bool> settled = api_.Settled(comm_);
    if (!settled.ok() || absl::Now() >= deadline) return false;
    if (!*settled) continue;
    api_.Destroy(comm_);
    return true;
  }
}

// Kernels that were told to end do so at once; the bound is for a GPU that has failed, which ends the process
// elsewhere.
void NcclLink::AwaitKernels() {
  const absl::Time deadline = absl::Now() + times_.end;
  for (const Transfer& transfer : moving_) {
    if (transfer.mark == nullptr) continue;
    while (absl::Now() < deadline) {
      const absl::StatusOr<bool> passed = api_.Passed(transfer.mark);
      if (!passed.ok() || *passed) break;
      absl::SleepFor(kMovePause);
    }
  }
}

NcclLinkFactory::NcclLinkFactory(std::unique_ptr<NcclApi> api, const std::string& host, const NcclTimes& times)
    : api_(std::move(api)),
      identity_(absl::StrCat("nccl ", api_->version(), " ", api_->gpu(), " host ", host)),
      times_(times) {}

absl::StatusOr<std::unique_ptr<PeerComm>> NcclLinkFactory::Open(const std::string& id, PeerRank rank) {
  if (id.size() != kIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("an id of NCCL's has ", kIdBytes, " bytes, not ", id.size()));
  }
  return std::make_unique<NcclLink>(*api_, id, rank, times_);
}

}  // namespace runahead
