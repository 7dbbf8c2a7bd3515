#include "worker/link/staging_lane.h"

#include <algorithm>
#include <utility>

#include "kernels/base/memory.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// Chunks begin where copies are fastest.
constexpr size_t kAlignment = 256;
// Large enough that what begins a copy costs little beside it, small enough that copies and wire overlap early.
constexpr size_t kMostChunkBytes = size_t{1} << 20;
constexpr size_t kLeastChunks = 8;

size_t ChunkBytes(size_t bytes) {
  return std::min(RoundUp(std::max<size_t>(bytes / kLeastChunks, 1), kAlignment), kMostChunkBytes);
}

}  // namespace

class StagingLane::Chunk final : public Buffer {
 public:
  Chunk(std::shared_ptr<StagingLane> lane, const Buffer& memory, size_t offset, size_t size)
      : Buffer(memory.data() + offset, size), lane_(std::move(lane)), offset_(offset) {}
  ~Chunk() override { lane_->GiveBack(offset_); }

 private:
  const std::shared_ptr<StagingLane> lane_;
  const size_t offset_;
};

std::shared_ptr<StagingLane> StagingLane::Create(Device& device, const std::string& name, size_t bytes,
                                                 std::shared_ptr<ProgressMeter> progress) {
  if (progress == nullptr) progress = std::make_shared<ProgressMeter>();
  return std::shared_ptr<StagingLane>(new StagingLane(device, name, bytes, std::move(progress)));
}

StagingLane::StagingLane(Device& device, const std::string& name, size_t bytes, std::shared_ptr<ProgressMeter> progress)
    : device_(device),
      chunk_bytes_(ChunkBytes(bytes)),
      chunks_(std::max<size_t>(bytes / chunk_bytes_, 1)),
      progress_(std::move(progress)),
      stream_(device.NewStream(name)),
      thread_("staging", progress_) {}

StagingLane::~StagingLane() {
  RUNAHEAD_CHECK(stream_ == nullptr);
}

void StagingLane::Prepare(std::function<void(absl::Status)> then) {
  {
    MutexLock lock(mu_);
    if (!stopped_ && memory_ == nullptr) {
      thread_.Post([this, then = std::move(then)] { then(AllocateMemory()); });
      return;
    }
  }
  then(absl::OkStatus());
}

BufferRef StagingLane::TakeFree(size_t bytes) {
  const size_t offset = free_.back();
  free_.pop_back();
  ++busy_;
  return BufferRef::Whole(std::make_shared<Chunk>(shared_from_this(), *memory_, offset, bytes));
}

BufferRef StagingLane::Take(size_t bytes) {
  MutexLock lock(mu_);
  return stopped_ || free_.empty() || !waiting_.empty() ? BufferRef() : TakeFree(bytes);
}

uint64_t StagingLane::Request(size_t bytes, Granted granted) {
  MutexLock lock(mu_);
  if (stopped_) return 0;
  waiting_.push_back({next_, bytes, std::move(granted)});
  thread_.Post([this] { Pump(); });
  return next_++;
}

bool StagingLane::Cancel(uint64_t request) {
  Waiting cancelled;  // destroyed without the lock
  MutexLock lock(mu_);
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [request](const Waiting& w) { return w.request == request; });
  if (found == waiting_.end()) return false;
  cancelled = std::move(*found);
  waiting_.erase(found);
  return true;
}

void StagingLane::Pump() {
  for (;;) {
    Granted granted;
    absl::StatusOr<BufferRef> chunk = BufferRef();
    if (!TakeNext(granted, chunk)) return;
    granted(std::move(chunk));
  }
}

bool StagingLane::TakeNext(Granted& granted, absl::StatusOr<BufferRef>& chunk) {
  const absl::Status memory = AllocateMemory();
  MutexLock lock(mu_);
  if (stopped_ || waiting_.empty() || (memory.ok() && free_.empty())) return false;
  if (memory.ok()) {
    chunk = TakeFree(waiting_.front().bytes);
  } else {
    chunk = memory;
  }
  granted = std::move(waiting_.front().granted);
  waiting_.pop_front();
  return true;
}

absl::Status StagingLane::AllocateMemory() {
  {
    MutexLock lock(mu_);
    if (memory_ != nullptr || stopped_) return absl::OkStatus();
  }
  const size_t bytes = chunk_bytes_ * chunks_;
  progress_->Resting();  // pinning takes long
  absl::StatusOr<std::shared_ptr<Buffer>> memory = device_.Allocate(bytes, MemoryKind::kHost);
  progress_->Awake();
  if (!memory.ok()) {
    const absl::Status not_pinned = memory.status();
    memory = AllocateHostMemory(bytes, nullptr);
    if (memory.ok()) {
      LogWarning("link", "memory that is not pinned stages what leaves and enters the device, which is slower: ",
                 not_pinned.ToString());
    }
  }
  RUNAHEAD_RETURN_IF_ERROR(memory.status());
  MutexLock lock(mu_);
  memory_ = *std::move(memory);
  for (size_t chunk = chunks_; chunk > 0; --chunk) free_.push_back((chunk - 1) * chunk_bytes_);
  return absl::OkStatus();
}

void StagingLane::GiveBack(size_t offset) {
  MutexLock lock(mu_);
  free_.push_back(offset);
  if (!stopped_ && !waiting_.empty()) thread_.Post([this] { Pump(); });
  --busy_;
  changed_.NotifyAll();
}

void StagingLane::Copy(ConstBufferRef from, BufferRef to, std::function<void(absl::Status)> done) {
  MutexLock lock(mu_);
  ++busy_;
  progress_->Begin(static_cast<double>(from.size));
  // Who copies is awaited by Stop.
  RUNAHEAD_CHECK(thread_.Post([this, from = std::move(from), to = std::move(to), done = std::move(done)]() mutable {
    Enqueue(std::move(from), std::move(to), std::move(done));
  }));
}

void StagingLane::Enqueue(ConstBufferRef from, BufferRef to, std::function<void(absl::Status)> done) {
  const absl::Status enqueued = device_.Copy(*stream_, from, to);
  from = to = {};  // nothing here holds them when `done` runs
  const Event copied = device_.Record(*stream_);
  copied.OnFire([lane = shared_from_this(), enqueued, done = std::move(done)](const absl::Status& status) mutable {
    lane->progress_->End();
    done(enqueued.ok() ? status : enqueued);
    done = nullptr;
    MutexLock lock(lane->mu_);
    --lane->busy_;
    lane->changed_.NotifyAll();
  });
}

void StagingLane::Stop() {
  std::deque<Waiting> forgotten;
  std::shared_ptr<Buffer> memory;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    forgotten.swap(waiting_);
  }
  forgotten.clear();
  {
    MutexLock lock(mu_);
    while (busy_ > 0) changed_.Wait(mu_);
    memory = std::move(memory_);
  }
  thread_.Stop();
  stream_.reset();
}

}  // namespace runahead
