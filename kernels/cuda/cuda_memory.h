// Memory of one GPU and pinned memory of its host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/memory.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Thread-safe. Buffers hold what they need of this and may outlive it.
class CudaMemory {
 public:
  // `budget`: bytes of device memory that AllocateDevice may give out; 0: nine tenths of what is free now.
  static absl::StatusOr<std::shared_ptr<CudaMemory>> Create(int ordinal, size_t budget);

  // From the driver's stream-ordered pool, which keeps what is freed: no call here waits for the GPU's work. May be
  // used on any stream at once. RESOURCE_EXHAUSTED with the budget's figures, or with the GPU's.
  absl::StatusOr<std::shared_ptr<Buffer>> AllocateDevice(size_t bytes);
  size_t left() const { return budget_->left(); }  // bytes that AllocateDevice may still give out
  // Page-locked, in huge pages where large, reachable by kernels under the same address. Small blocks share pages.
  absl::StatusOr<std::shared_ptr<Buffer>> AllocatePinned(size_t bytes);

 private:
  class Pool;
  CudaMemory(std::shared_ptr<Pool> pool, size_t budget);
  const std::shared_ptr<Pool> pool_;
  const std::shared_ptr<MemoryBudget> budget_;
  Arena pinned_;
};

// Flags that a stream can wait for and any thread can raise: four pinned bytes each.
class CudaFlags : public std::enable_shared_from_this<CudaFlags> {
 public:
  static absl::StatusOr<std::shared_ptr<CudaFlags>> Create(CudaMemory& memory);
  // A lowered flag; given back with its last reference. Null when all are taken.
  std::shared_ptr<uint32_t> Take() RUNAHEAD_EXCLUDES(mu_);

 private:
  explicit CudaFlags(std::shared_ptr<Buffer> memory);
  const std::shared_ptr<Buffer> memory_;
  Mutex mu_;
  std::vector<uint32_t*> free_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
