#include "worker/link/staging_lane.h"

#include <algorithm>
#include <utility>

#include "kernels/base/memory.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// Rooms begin where copies are fastest.
constexpr size_t kAlignment = 256;

}  // namespace

// A range of the lane's memory, or of what it has for large ones.
class StagingLane::Room final : public Buffer {
 public:
  Room(std::shared_ptr<StagingLane> lane, std::shared_ptr<Buffer> memory, size_t offset, size_t size, size_t taken)
      : Buffer(memory->data() + offset, size),
        lane_(std::move(lane)),
        memory_(std::move(memory)),
        offset_(offset),
        taken_(taken) {}
  ~Room() override {
    memory_.reset();  // first: the lane may be waiting for it
    lane_->GiveBack(offset_, taken_);
  }

 private:
  const std::shared_ptr<StagingLane> lane_;
  std::shared_ptr<Buffer> memory_;
  const size_t offset_, taken_;  // taken: of the lane's memory
};

std::shared_ptr<StagingLane> StagingLane::Create(Device& device, const std::string& name, size_t bytes) {
  return std::shared_ptr<StagingLane>(new StagingLane(device, name, bytes));
}

StagingLane::StagingLane(Device& device, const std::string& name, size_t bytes)
    : device_(device), bytes_(RoundUp(bytes, kAlignment)), stream_(device.NewStream(name)) {
  RUNAHEAD_CHECK(bytes > 0);
}

StagingLane::~StagingLane() {
  RUNAHEAD_CHECK(stream_ == nullptr);
}

void StagingLane::Prepare() {
  MutexLock lock(mu_);
  if (!stopped_) thread_->Post([this] { AllocateMemory().IgnoreError(); });  // who asks for room is told
}

uint64_t StagingLane::Request(size_t bytes, Granted granted) {
  MutexLock lock(mu_);
  if (stopped_) return 0;
  waiting_.push_back({next_, bytes, std::move(granted)});
  thread_->Post([this] { Pump(); });
  return next_++;
}

void StagingLane::Cancel(uint64_t request) {
  Waiting cancelled;  // destroyed without the lock
  MutexLock lock(mu_);
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [request](const Waiting& w) { return w.request == request; });
  if (found == waiting_.end()) return;
  cancelled = std::move(*found);
  waiting_.erase(found);
  if (!stopped_) thread_->Post([this] { Pump(); });  // it may have been in the way of others
}

void StagingLane::Pump() {
  for (;;) {
    Granted granted;
    absl::StatusOr<BufferRef> room = BufferRef();
    if (!TakeNext(granted, room)) return;
    granted(std::move(room));
  }
}

bool StagingLane::TakeNext(Granted& granted, absl::StatusOr<BufferRef>& room) {
  size_t alone = 0;
  const absl::Status memory = AllocateMemory();
  {
    MutexLock lock(mu_);
    if (stopped_ || waiting_.empty()) return false;
    const size_t bytes = waiting_.front().bytes;
    if (!memory.ok()) {
      room = memory;
    } else if (bytes <= bytes_) {
      room = Carve(bytes);
      if (room->buffer == nullptr) return false;
    } else if (held_ == 0) {
      alone = bytes;
      ++held_;
    } else {
      return false;
    }
    granted = std::move(waiting_.front().granted);
    waiting_.pop_front();
  }
  if (alone == 0) return true;
  absl::StatusOr<std::shared_ptr<Buffer>> own = LargeMemory(alone);
  if (own.ok()) {
    room = BufferRef::Whole(std::make_shared<Room>(shared_from_this(), *std::move(own), 0, alone, 0));
  } else {
    room = own.status();
    GiveBack(0, 0);
  }
  return true;
}

absl::StatusOr<std::shared_ptr<Buffer>> StagingLane::HostMemory(size_t bytes) {
  absl::StatusOr<std::shared_ptr<Buffer>> pinned = device_.Allocate(bytes, MemoryKind::kHost);
  if (pinned.ok()) return pinned;
  LogWarning("link", "memory that is not pinned stages what leaves and enters the device, which is slower: ",
             pinned.status().ToString());
  return AllocateHostMemory(bytes, nullptr);
}

absl::StatusOr<std::shared_ptr<Buffer>> StagingLane::LargeMemory(size_t bytes) {
  size_t least = 0;
  {
    MutexLock lock(mu_);
    if (!large_.empty() && large_.back()->size() >= bytes) return large_.back();
    if (!large_.empty()) least = 2 * large_.back()->size();
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, HostMemory(std::max(RoundUp(bytes, kAlignment), least)));
  MutexLock lock(mu_);
  large_.push_back(memory);
  return memory;
}

absl::Status StagingLane::AllocateMemory() {
  {
    MutexLock lock(mu_);
    if (memory_ != nullptr || stopped_) return absl::OkStatus();
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, HostMemory(bytes_));
  MutexLock lock(mu_);
  memory_ = std::move(memory);
  free_ = {{0, bytes_}};
  return absl::OkStatus();
}

BufferRef StagingLane::Carve(size_t bytes) {
  const size_t taken = RoundUp(bytes, kAlignment);
  for (auto gap = free_.begin(); gap != free_.end(); ++gap) {
    const auto [offset, size] = *gap;
    if (size < taken) continue;
    free_.erase(gap);
    if (size > taken) free_.emplace(offset + taken, size - taken);
    ++held_;
    return BufferRef::Whole(std::make_shared<Room>(shared_from_this(), memory_, offset, bytes, taken));
  }
  return {};
}

void StagingLane::GiveBack(size_t offset, size_t bytes) {
  MutexLock lock(mu_);
  --held_;
  if (bytes > 0) {
    auto gap = free_.emplace(offset, bytes).first;
    if (const auto after = std::next(gap); after != free_.end() && offset + bytes == after->first) {
      gap->second += after->second;
      free_.erase(after);
    }
    if (gap != free_.begin()) {
      const auto before = std::prev(gap);
      if (before->first + before->second == offset) {
        before->second += gap->second;
        free_.erase(gap);
      }
    }
  }
  if (!stopped_ && !waiting_.empty()) thread_->Post([this] { Pump(); });
  changed_.NotifyAll();
}

void StagingLane::Copy(ConstBufferRef from, BufferRef to, std::function<void(absl::Status)> done) {
  MutexLock lock(mu_);
  ++copies_;
  RUNAHEAD_CHECK(thread_ != nullptr);  // who copies holds room, which Stop awaits
  thread_->Post([this, from = std::move(from), to = std::move(to), done = std::move(done)]() mutable {
    Enqueue(std::move(from), std::move(to), std::move(done));
  });
}

void StagingLane::Enqueue(ConstBufferRef from, BufferRef to, std::function<void(absl::Status)> done) {
  const absl::Status enqueued = device_.Copy(*stream_, from, to);
  from = to = {};  // nothing here holds them when `done` runs
  const Event copied = device_.Record(*stream_);
  copied.OnFire([lane = shared_from_this(), enqueued, done = std::move(done)](const absl::Status& status) {
    done(enqueued.ok() ? status : enqueued);
    MutexLock lock(lane->mu_);
    --lane->copies_;
    lane->changed_.NotifyAll();
  });
}

void StagingLane::Stop() {
  std::deque<Waiting> forgotten;
  std::unique_ptr<TaskThread> thread;
  std::shared_ptr<Buffer> memory;
  std::vector<std::shared_ptr<Buffer>> large;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    forgotten.swap(waiting_);
  }
  forgotten.clear();
  {
    MutexLock lock(mu_);
    while (held_ > 0 || copies_ > 0) changed_.Wait(mu_);
    thread = std::move(thread_);
    memory = std::move(memory_);
    large.swap(large_);
  }
  thread.reset();
  stream_.reset();
}

}  // namespace runahead
