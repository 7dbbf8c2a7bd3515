// Pinned host memory that bytes pass through on their way between device and network, a ring of chunks, and the copies
// into or out of it: one direction.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "server/base/progress_meter.h"
#include "server/base/task_thread.h"

namespace runahead {

// Thread-safe. One thread and one stream of its own. Chunks are given in the order of asking, and come back with the
// last reference. No memory is freed before Stop: unpinning may wait for all streams, and these may wait for what has
// yet to pass here.
class StagingLane : public std::enable_shared_from_this<StagingLane> {
 public:
  // Runs on the lane's thread.
  using Granted = std::function<void(absl::StatusOr<BufferRef>)>;

  // `bytes` of the device's kHost memory, allocated by Prepare or with the first chunk. `device` outlives Stop.
  // `progress` is of the lane's thread and of its copies, by bytes; null: nobody asks.
  static std::shared_ptr<StagingLane> Create(Device& device, const std::string& name, size_t bytes,
                                             std::shared_ptr<ProgressMeter> progress = nullptr);
  ~StagingLane();  // after Stop

  // At most so many bytes pass at once: 1 MiB, or an eighth of a lane that has less than 8 MiB.
  size_t chunk_bytes() const { return chunk_bytes_; }

  // Allocates the memory, on the lane's thread, and then runs `then`; at once, on this one, where the memory is there.
  // OK also after Stop; RESOURCE_EXHAUSTED where it cannot be had.
  void Prepare(std::function<void(absl::Status)> then = [](const absl::Status&) {}) RUNAHEAD_EXCLUDES(mu_);
  // A chunk, or the first `bytes` of one (at least 1, at most chunk_bytes()), that is free and that nobody else waits
  // for; else nothing.
  BufferRef Take(size_t bytes) RUNAHEAD_EXCLUDES(mu_);
  // Asks for one. Returns the request, for Cancel; 0 after Stop: then `granted` never runs. It gets RESOURCE_EXHAUSTED
  // where the memory cannot be had.
  uint64_t Request(size_t bytes, Granted granted) RUNAHEAD_EXCLUDES(mu_);
  // Whether the request waited still: then `granted` never runs.
  bool Cancel(uint64_t request) RUNAHEAD_EXCLUDES(mu_);
  // Copies between the device's memory and the host's. `done` runs once, on any thread.
  void Copy(ConstBufferRef from, BufferRef to, std::function<void(absl::Status)> done) RUNAHEAD_EXCLUDES(mu_);
  // For the owner, not on a callback, once nobody needs chunks or copies any more. Forgets the requests that wait;
  // awaits the copies under way and the return of all chunks.
  void Stop() RUNAHEAD_EXCLUDES(mu_);

 private:
  class Chunk;
  struct Waiting {
    uint64_t request = 0;
    size_t bytes = 0;
    Granted granted;
  };

  StagingLane(Device& device, const std::string& name, size_t bytes, std::shared_ptr<ProgressMeter> progress);
  void Pump() RUNAHEAD_EXCLUDES(mu_);
  BufferRef TakeFree(size_t bytes) RUNAHEAD_REQUIRES(mu_);
  // The front request with its chunk, or nothing while there is none. On the lane's thread.
  bool TakeNext(Granted& granted, absl::StatusOr<BufferRef>& chunk) RUNAHEAD_EXCLUDES(mu_);
  absl::Status AllocateMemory() RUNAHEAD_EXCLUDES(mu_);
  void GiveBack(size_t offset) RUNAHEAD_EXCLUDES(mu_);
  void Enqueue(ConstBufferRef from, BufferRef to, std::function<void(absl::Status)> done);

  Device& device_;
  const size_t chunk_bytes_, chunks_;
  const std::shared_ptr<ProgressMeter> progress_;
  std::unique_ptr<Stream> stream_;  // of the lane's thread

  Mutex mu_;
  CondVar changed_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 1;
  std::deque<Waiting> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<Buffer> memory_ RUNAHEAD_GUARDED_BY(mu_);  // null until it is wanted
  std::vector<size_t> free_ RUNAHEAD_GUARDED_BY(mu_);        // offsets of chunks
  int busy_ RUNAHEAD_GUARDED_BY(mu_) = 0;                    // chunks that are held, and copies under way
  TaskThread thread_;
};

}  // namespace runahead
