// Budgets of memory, host memory (aligned, in huge pages where large), and arenas that place blocks in either device's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/mutex.h"

namespace runahead {

// The first multiple of `to` that `bytes` fit in.
constexpr size_t RoundUp(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

// Counts bytes up to a limit. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t limit) : limit_(limit) {}  // 0: no limit
  // RESOURCE_EXHAUSTED, naming the bytes wanted, used and allowed.
  absl::Status Take(size_t bytes);
  void GiveBack(size_t bytes) { used_.fetch_sub(bytes); }
  size_t used() const { return used_.load(); }
  size_t left() const {  // the largest size_t without a limit
    return limit_ == 0 ? std::numeric_limits<size_t>::max() : limit_ - std::min(used(), limit_);
  }

 private:
  const size_t limit_;
  std::atomic<size_t> used_{0};
};

// Uninitialised, 64-byte aligned memory; `budget` may be null. The budget gets its bytes back with the last reference.
absl::StatusOr<std::shared_ptr<Buffer>> AllocateHostMemory(size_t bytes, std::shared_ptr<MemoryBudget> budget);

// Memory that an arena places its blocks in, 64-byte aligned or better. Thread-safe.
using ChunkAllocator = std::function<absl::StatusOr<std::shared_ptr<Buffer>>(size_t bytes)>;
ChunkAllocator HostChunks(std::shared_ptr<MemoryBudget> budget);  // AllocateHostMemory; `budget` may be null

// Places many blocks that live about as long as each other (weights) next to each other, 64-byte aligned, in chunks of
// 16 MiB; larger blocks get memory of their own. Thread-safe. The memory of a chunk is freed with the arena and the
// last of its blocks.
class Arena {
 public:
  explicit Arena(ChunkAllocator allocate) : allocate_(std::move(allocate)) {}
  absl::StatusOr<BufferRef> Allocate(size_t bytes) RUNAHEAD_EXCLUDES(mu_);

 private:
  const ChunkAllocator allocate_;
  Mutex mu_;
  BufferRef chunk_ RUNAHEAD_GUARDED_BY(mu_);  // what is left of the current chunk
};

}  // namespace runahead
