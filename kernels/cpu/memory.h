// Host memory for the CPU device: aligned, in huge pages where large, and counted against a budget.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Counts bytes up to a limit. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t limit) : limit_(limit) {}  // 0: no limit
  // RESOURCE_EXHAUSTED, naming the bytes wanted, used and allowed.
  absl::Status Take(size_t bytes);
  void GiveBack(size_t bytes) { used_.fetch_sub(bytes); }
  size_t used() const { return used_.load(); }

 private:
  const size_t limit_;
  std::atomic<size_t> used_{0};
};

// Uninitialised, 64-byte aligned memory; `budget` may be null. The budget gets its bytes back with the last reference.
absl::StatusOr<std::shared_ptr<Buffer>> AllocateHostMemory(size_t bytes, std::shared_ptr<MemoryBudget> budget);

// Places many blocks that live about as long as each other (weights) next to each other in huge pages. Thread-safe.
// The memory of a chunk is freed with the arena and the last of its blocks.
class Arena {
 public:
  explicit Arena(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {}
  absl::StatusOr<BufferRef> Allocate(size_t bytes) RUNAHEAD_EXCLUDES(mu_);

 private:
  const std::shared_ptr<MemoryBudget> budget_;
  Mutex mu_;
  BufferRef chunk_ RUNAHEAD_GUARDED_BY(mu_);  // what is left of the current chunk
};

}  // namespace runahead
