#include "kernels/cuda/nccl_peer_comm.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/monotonic.h"
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
  return absl::UnavailableError("the communicator between the GPUs was ended here");
}

}  // namespace

NcclPeerComm::NcclPeerComm(std::shared_ptr<NcclApi> api, std::string id, PeerRank rank, const NcclTimes& times)
    : api_(std::move(api)), id_(std::move(id)), rank_(rank), times_(times), thread_([this] { Run(); }) {}

NcclPeerComm::~NcclPeerComm() {
  Stop();
  thread_.join();
}

void NcclPeerComm::Stop() {
  MutexLock lock(mu_);
  ending_ = true;
  changed_.NotifyAll();
}

absl::Status NcclPeerComm::Health() const {
  MutexLock lock(mu_);
  return health_;
}

Event NcclPeerComm::Enqueue(PeerRank as, Transfer transfer) {
  if (transfer.ref.size == 0) return Event();
  const EventSource source = transfer.source;
  absl::Status refused;
  {
    MutexLock lock(mu_);
    refused = as == rank_ ? health_ : absl::InvalidArgumentError("one rank sends, the other receives");
    if (refused.ok()) {
      queue_.push_back(std::move(transfer));
      changed_.NotifyAll();
    }
  }
  if (!refused.ok()) source.Fire(refused);
  return source.event();
}

absl::Status NcclPeerComm::Pause(absl::Duration time) {
  MutexLock lock(mu_);
  if (!ending_) changed_.WaitFor(mu_, time);
  return ending_ ? Ended() : absl::OkStatus();
}

void NcclPeerComm::Run() {
  absl::Status status = Establish();
  if (status.ok()) {
    ready_.Fire(absl::OkStatus());
    status = Serve();
  }
  End(std::move(status));
}

absl::Status NcclPeerComm::Establish() {
  const absl::Time deadline = MonotonicNow() + times_.ready;
  RUNAHEAD_RETURN_IF_ERROR(api_->EnterThread());
  RUNAHEAD_ASSIGN_OR_RETURN(stream_, api_->NewStream());
  RUNAHEAD_ASSIGN_OR_RETURN(scratch_, api_->NewScratch(kFirstBytes));
  RUNAHEAD_RETURN_IF_ERROR(api_->Init(id_, static_cast<int>(rank_), comm_));
  RUNAHEAD_RETURN_IF_ERROR(AwaitSettled(deadline, "the peer's GPU to join"));
  // Before any frame: loading a kernel may wait for kernels that run, which may be waiting for this one.
  RUNAHEAD_ASSIGN_OR_RETURN(sums_, api_->NewSums(static_cast<int>(kMostMoving)));
  RUNAHEAD_RETURN_IF_ERROR(
      api_->Sum(scratch_->data(), kFirstBytes, reinterpret_cast<uint64_t*>(sums_->data()), stream_));
  RUNAHEAD_RETURN_IF_ERROR(Start(scratch_->data(), kFirstBytes, deadline));
  RUNAHEAD_ASSIGN_OR_RETURN(const NcclApi::Mark mark, api_->Record(stream_));
  moving_.push_back({BufferRef(), EventSource(), mark, nullptr, nullptr});
  for (;;) {
    FirePassed();
    if (moving_.empty()) return absl::OkStatus();
    RUNAHEAD_RETURN_IF_ERROR(api_->Settled(comm_).status());
    if (MonotonicNow() >= deadline)
      return absl::UnavailableError("no byte came through the communicator between the GPUs");
    RUNAHEAD_RETURN_IF_ERROR(Pause(kJoinPause));
  }
}

absl::Status NcclPeerComm::Serve() {
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
    const bool passed = FirePassed();
    if (submits || passed) continue;
    RUNAHEAD_RETURN_IF_ERROR(api_->Settled(comm_).status());
    if (!moving_.empty() && MonotonicNow() >= first_since_ + times_.move) {
      return absl::UnavailableError("a transfer between the GPUs does not come to its end");
    }
    MutexLock lock(mu_);
    const bool waits = queue_.empty() || moving_.size() >= kMostMoving;
    if (waits && !ending_) changed_.WaitFor(mu_, moving_.empty() ? kIdlePause : kMovePause);
  }
}

absl::Status NcclPeerComm::Submit(Transfer transfer) {
  if (moving_.empty()) first_since_ = MonotonicNow();
  moving_.push_back(std::move(transfer));  // also where it fails: it may be in the stream
  Transfer& moving = moving_.back();
  if (rank_ == PeerRank::kSender) RUNAHEAD_RETURN_IF_ERROR(Sum(moving));
  RUNAHEAD_RETURN_IF_ERROR(Start(moving.ref.data(), moving.ref.size, MonotonicNow() + times_.enqueue));
  if (rank_ == PeerRank::kReceiver) RUNAHEAD_RETURN_IF_ERROR(Sum(moving));
  RUNAHEAD_ASSIGN_OR_RETURN(moving.mark, api_->Record(stream_));
  return absl::OkStatus();
}

// No two of those in the stream have one place.
absl::Status NcclPeerComm::Sum(Transfer& transfer) {
  if (transfer.sum == nullptr) return absl::OkStatus();
  uint64_t* const partials =
      reinterpret_cast<uint64_t*>(sums_->data()) + next_sum_++ % kMostMoving * NcclApi::kSumPartials;
  transfer.partials = partials;
  return api_->Sum(transfer.ref.data(), transfer.ref.size, partials, stream_);
}

absl::Status NcclPeerComm::Start(void* memory, size_t size, absl::Time deadline) {
  RUNAHEAD_RETURN_IF_ERROR(rank_ == PeerRank::kSender ? api_->Send(comm_, memory, size, stream_)
                                                      : api_->Recv(comm_, memory, size, stream_));
  return AwaitSettled(deadline, "a transfer to be put into the GPU's queue");
}

absl::Status NcclPeerComm::AwaitSettled(absl::Time deadline, const char* what) {
  for (;;) {
    RUNAHEAD_ASSIGN_OR_RETURN(const bool settled, api_->Settled(comm_));
    if (settled) return absl::OkStatus();
    if (MonotonicNow() >= deadline) {
      return absl::UnavailableError(absl::StrCat("the time is over that was given for ", what));
    }
    RUNAHEAD_RETURN_IF_ERROR(Pause(ready_.event().fired() ? kMovePause : kJoinPause));
  }
}

bool NcclPeerComm::FirePassed() {
  bool any = false;
  while (!moving_.empty() && api_->Passed(moving_.front().mark)) {
    any = true;
    Transfer done = std::move(moving_.front());
    moving_.pop_front();
    api_->EndMark(done.mark);
    done.ref = {};
    if (done.sum != nullptr) {
      *done.sum = std::accumulate(done.partials, done.partials + NcclApi::kSumPartials, uint64_t{0});
    }
    done.source.Fire(absl::OkStatus());
  }
  if (any) first_since_ = MonotonicNow();
  return any;
}

// To free a communicator is to wait for all that runs on the GPU, kernels of other communicators and streams that wait
// for events of this one; and for peers on this host, which may be stopped and never come. So that is done beside,
// while the events fire.
void NcclPeerComm::End(absl::Status why) {
  std::deque<Transfer> queued;
  {
    MutexLock lock(mu_);
    health_ = why;
    queued.swap(queue_);
  }
  const EventSource aborted;
  std::thread aborting;
  if (comm_ != nullptr) {
    // Nothing of CUDA before it: it has to come through where CUDA's calls are held up.
    aborting = std::thread([api = api_, comm = comm_, aborted] {
      api->Abort(comm);
      aborted.Fire(absl::OkStatus());
    });
  }
  ready_.Fire(why);
  for (; !queued.empty(); queued.pop_front()) {
    queued.front().ref = {};
    queued.front().source.Fire(why);
  }
  const bool rests = FireAborted(why, aborted.event());
  if (aborting.joinable()) {
    if (!aborted.event().Wait(times_.leave).ok() && rests) return LeaveAlone(std::move(aborting), why);
    if (!aborted.event().Wait(times_.abort).ok()) {
      std::fprintf(stderr, "NCCL may still touch memory that it was told to leave (%s): the process ends\n",
                   why.ToString().c_str());
      std::abort();
    }
    aborting.join();
    AwaitStream();
  }
  scratch_.reset();
  sums_.reset();
  if (stream_ != nullptr) api_->EndStream(stream_);
}

void NcclPeerComm::LeaveAlone(std::thread aborting, const absl::Status& why) {
  std::fprintf(stderr, "NCCL does not give up a communicator (%s), and is left alone with it\n",
               why.ToString().c_str());
  aborting.detach();
  // What it knows stays until the process is gone: it may come back when neither the device nor CUDA is there.
  struct Left {
    Mutex mu;
    std::vector<std::tuple<std::shared_ptr<NcclApi>, std::shared_ptr<Buffer>, std::shared_ptr<Buffer>>> all
        RUNAHEAD_GUARDED_BY(mu);
  };
  static Left& left = *new Left;
  MutexLock lock(left.mu);
  left.all.emplace_back(api_, std::move(scratch_), std::move(sums_));
}

bool NcclPeerComm::FireAborted(const absl::Status& why, const Event& aborted) {
  bool rests = true;
  for (; !moving_.empty(); moving_.pop_front()) {
    Transfer& transfer = moving_.front();
    if (transfer.mark != nullptr) {
      rests &= AwaitPassed(transfer.mark);
      api_->EndMark(transfer.mark);
    } else {
      // NCCL may put it into the stream still: the last moment for that is not told but by the end of Abort, which may
      // be waiting for this event.
      rests &= aborted.Wait(times_.end).ok() && AwaitStream();
    }
    transfer.ref = {};
    transfer.source.Fire(why);
  }
  return rests;
}

// Kernels that were told to end do so at once. False where they do not: the GPU has failed.
bool NcclPeerComm::AwaitPassed(NcclApi::Mark mark) {
  const absl::Time deadline = MonotonicNow() + times_.end;
  while (!api_->Passed(mark)) {
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(kMovePause);
  }
  return true;
}

bool NcclPeerComm::AwaitStream() {
  const absl::StatusOr<NcclApi::Mark> mark = api_->Record(stream_);
  if (!mark.ok()) return false;
  const bool passed = AwaitPassed(*mark);
  api_->EndMark(*mark);
  return passed;
}

NcclPeerCommFactory::NcclPeerCommFactory(std::unique_ptr<NcclApi> api, const std::string& host, const NcclTimes& times)
    : api_(std::move(api)),
      identity_(absl::StrCat("nccl ", api_->version(), " ", api_->gpu(), " host ", host)),
      times_(times) {}

absl::StatusOr<std::unique_ptr<PeerComm>> NcclPeerCommFactory::Open(const std::string& id, PeerRank rank) {
  if (id.size() != kIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("an id of NCCL's has ", kIdBytes, " bytes, not ", id.size()));
  }
  return std::make_unique<NcclPeerComm>(api_, id, rank, times_);
}

}  // namespace runahead
