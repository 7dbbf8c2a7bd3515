// Pinned host memory that bytes pass through on their way between device and network, and the copies into or out of it:
// one direction.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "kernels/base/task_thread.h"

namespace runahead {

// Thread-safe. One thread and one stream of its own. Room is given in the order of asking; what is larger than all of
// the memory gets memory of its own when nobody else holds any. Room comes back with the last reference to it. No
// memory is freed before Stop: unpinning may wait for all streams, and these may wait for what has yet to pass here.
class StagingLane : public std::enable_shared_from_this<StagingLane> {
 public:
  // Runs on the lane's thread.
  using Granted = std::function<void(absl::StatusOr<BufferRef>)>;

  // `bytes` of the device's kHost memory, allocated by Prepare or with the first room. `device` outlives Stop.
  static std::shared_ptr<StagingLane> Create(Device& device, const std::string& name, size_t bytes);
  ~StagingLane();  // after Stop

  // Allocates the memory, on the lane's thread.
  void Prepare() RUNAHEAD_EXCLUDES(mu_);
  // Asks for room of `bytes` (at least 1). Returns the request, for Cancel; 0 after Stop: then `granted` never runs.
  // It gets RESOURCE_EXHAUSTED where the memory cannot be had.
  uint64_t Request(size_t bytes, Granted granted) RUNAHEAD_EXCLUDES(mu_);
  // When the request waits still, `granted` never runs.
  void Cancel(uint64_t request) RUNAHEAD_EXCLUDES(mu_);
  // Copies between the device's memory and the host's. `done` runs once, on any thread but this one.
  void Copy(ConstBufferRef from, BufferRef to, std::function<void(absl::Status)> done) RUNAHEAD_EXCLUDES(mu_);
  // For the owner, not on a callback, once nobody needs room or copies any more. Forgets the requests that wait; awaits
  // the copies under way and the return of all room.
  void Stop() RUNAHEAD_EXCLUDES(mu_);

 private:
  class Room;
  struct Waiting {
    uint64_t request = 0;
    size_t bytes = 0;
    Granted granted;
  };

  StagingLane(Device& device, const std::string& name, size_t bytes);
  void Pump() RUNAHEAD_EXCLUDES(mu_);
  // The front request with its room, or nothing while there is none. On the lane's thread.
  bool TakeNext(Granted& granted, absl::StatusOr<BufferRef>& room) RUNAHEAD_EXCLUDES(mu_);
  absl::Status AllocateMemory() RUNAHEAD_EXCLUDES(mu_);
  absl::StatusOr<std::shared_ptr<Buffer>> HostMemory(size_t bytes);
  // For what is larger than all of the memory, while nobody else has it.
  absl::StatusOr<std::shared_ptr<Buffer>> LargeMemory(size_t bytes) RUNAHEAD_EXCLUDES(mu_);
  BufferRef Carve(size_t bytes) RUNAHEAD_REQUIRES(mu_);
  void GiveBack(size_t offset, size_t bytes) RUNAHEAD_EXCLUDES(mu_);
  void Enqueue(ConstBufferRef from, BufferRef to, std::function<void(absl::Status)> done);

  Device& device_;
  const size_t bytes_;
  std::unique_ptr<Stream> stream_;  // of the lane's thread

  Mutex mu_;
  CondVar changed_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 1;
  std::deque<Waiting> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<Buffer> memory_ RUNAHEAD_GUARDED_BY(mu_);  // null until it is wanted
  std::map<size_t, size_t> free_ RUNAHEAD_GUARDED_BY(mu_);   // offset -> bytes; no two touch
  // Each at least twice as large as the one before, so that those outgrown are less than the last.
  std::vector<std::shared_ptr<Buffer>> large_ RUNAHEAD_GUARDED_BY(mu_);
  int held_ RUNAHEAD_GUARDED_BY(mu_) = 0;    // rooms
  int copies_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // under way
  std::unique_ptr<TaskThread> thread_ RUNAHEAD_GUARDED_BY(mu_) = std::make_unique<TaskThread>();
};

}  // namespace runahead
