#include "kernels/cuda/cuda_memory.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace runahead {
namespace {

constexpr size_t kAlignment = 256;     // what cudaMalloc aligns to, and so what it takes
constexpr size_t kOwnPages = 1 << 20;  // pinned blocks from this size on have pages of their own
constexpr size_t kFlagBytes = 64 << 10;

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(std::shared_ptr<Buffer> memory, int ordinal)
      : Buffer(memory->data(), memory->size()), ordinal_(ordinal), memory_(std::move(memory)) {}
  ~PinnedBuffer() override {
    UseGpu(ordinal_);
    CudaMust(cudaHostUnregister(data_), "unpinning host memory");
  }

 private:
  const int ordinal_;
  const std::shared_ptr<Buffer> memory_;
};

class DriverBuffer final : public Buffer {
 public:
  DriverBuffer(void* data, size_t size, int ordinal) : Buffer(static_cast<std::byte*>(data), size), ordinal_(ordinal) {}
  ~DriverBuffer() override {
    UseGpu(ordinal_);
    CudaMust(cudaFreeHost(data_), "giving pinned memory back");
  }

 private:
  const int ordinal_;
};

// Our own memory, in huge pages; where it cannot be pinned (some sandboxes), the driver's.
absl::StatusOr<std::shared_ptr<Buffer>> Pin(int ordinal, size_t bytes) {
  UseGpu(ordinal);
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, AllocateHostMemory(bytes, nullptr));
  if (cudaHostRegister(memory->data(), memory->size(), cudaHostRegisterPortable | cudaHostRegisterMapped) ==
      cudaSuccess) {
    return std::make_shared<PinnedBuffer>(std::move(memory), ordinal);
  }
  memory.reset();
  void* data = nullptr;
  const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  cudaGetLastError();  // else the next launch would report what failed here
  RUNAHEAD_RETURN_IF_ERROR(CudaStatus(code, absl::StrCat("pinning ", bytes, " bytes of host memory")));
  return std::make_shared<DriverBuffer>(data, bytes, ordinal);
}

// A byte range with its owner as a buffer.
class SlicedBuffer final : public Buffer {
 public:
  SlicedBuffer(BufferRef ref, size_t size) : Buffer(ref.data(), size), ref_(std::move(ref)) {}

 private:
  const BufferRef ref_;
};

}  // namespace

// The driver's pool and the stream on which blocks are taken and given back. Nothing else runs there, so that waiting
// for it is waiting for the driver's bookkeeping only.
class CudaMemory::Pool {
 public:
  static absl::StatusOr<std::shared_ptr<Pool>> Create(int ordinal) {
    auto pool = std::make_shared<Pool>(ordinal);
    RUNAHEAD_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "choosing the GPU"));
    RUNAHEAD_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&pool->stream_, cudaStreamNonBlocking), "making the memory stream"));
    cudaMemPool_t blocks = nullptr;
    RUNAHEAD_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetDefaultMemPool(&blocks, ordinal), "finding the memory pool"));
    uint64_t keep = UINT64_MAX;
    RUNAHEAD_RETURN_IF_ERROR(
        CudaStatus(cudaMemPoolSetAttribute(blocks, cudaMemPoolAttrReleaseThreshold, &keep), "setting the memory pool"));
    return pool;
  }
  explicit Pool(int ordinal) : ordinal_(ordinal) {}
  ~Pool() {
    UseGpu(ordinal_);
    if (stream_ != nullptr) CudaMust(cudaStreamDestroy(stream_), "ending the memory stream");
  }

  absl::StatusOr<void*> Take(size_t bytes) {
    UseGpu(ordinal_);
    void* data = nullptr;
    const cudaError_t code = cudaMallocAsync(&data, bytes, stream_);
    if (code != cudaSuccess) cudaGetLastError();  // else the next launch would report it again
    RUNAHEAD_RETURN_IF_ERROR(CudaStatus(code, absl::StrCat("taking ", bytes, " bytes of GPU memory")));
    CudaMust(cudaStreamSynchronize(stream_), "taking GPU memory");
    return data;
  }
  void GiveBack(void* data) {
    UseGpu(ordinal_);
    CudaMust(cudaFreeAsync(data, stream_), "giving GPU memory back");
  }
  int ordinal() const { return ordinal_; }

 private:
  const int ordinal_;
  cudaStream_t stream_ = nullptr;
};

namespace {

// All that used the memory has run when the last reference goes: whoever enqueues holds one until then.
template <typename Pool>
class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(void* data, size_t size, std::shared_ptr<Pool> pool, std::shared_ptr<MemoryBudget> budget,
               size_t counted)
      : Buffer(static_cast<std::byte*>(data), size),
        pool_(std::move(pool)),
        budget_(std::move(budget)),
        counted_(counted) {}
  ~DeviceBuffer() override {
    pool_->GiveBack(data_);
    budget_->GiveBack(counted_);
  }

 private:
  const std::shared_ptr<Pool> pool_;
  const std::shared_ptr<MemoryBudget> budget_;
  const size_t counted_;
};

}  // namespace

CudaMemory::CudaMemory(std::shared_ptr<Pool> pool, size_t budget)
    : pool_(std::move(pool)),
      budget_(std::make_shared<MemoryBudget>(budget)),
      pinned_([ordinal = pool_->ordinal()](size_t bytes) { return Pin(ordinal, bytes); }) {}

absl::StatusOr<std::shared_ptr<CudaMemory>> CudaMemory::Create(int ordinal, size_t budget) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Pool> pool, Pool::Create(ordinal));
  size_t free = 0, total = 0;
  RUNAHEAD_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "asking for free GPU memory"));
  if (budget > total) {
    return absl::InvalidArgumentError(absl::StrCat("device_memory_budget: is ", budget, " bytes, and the GPU has ",
                                                   total, ": give less, or 0 for nine tenths of what is free"));
  }
  return std::shared_ptr<CudaMemory>(new CudaMemory(std::move(pool), budget > 0 ? budget : free / 10 * 9));
}

absl::StatusOr<std::shared_ptr<Buffer>> CudaMemory::AllocateDevice(size_t bytes) {
  const size_t counted = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  RUNAHEAD_RETURN_IF_ERROR(budget_->Take(counted));
  absl::StatusOr<void*> data = pool_->Take(counted);
  if (!data.ok()) {
    budget_->GiveBack(counted);
    return data.status();
  }
  return std::make_shared<DeviceBuffer<Pool>>(*data, bytes, pool_, budget_, counted);
}

absl::StatusOr<std::shared_ptr<Buffer>> CudaMemory::AllocatePinned(size_t bytes) {
  if (bytes >= kOwnPages) return Pin(pool_->ordinal(), bytes);
  RUNAHEAD_ASSIGN_OR_RETURN(BufferRef block, pinned_.Allocate(bytes));
  return std::make_shared<SlicedBuffer>(std::move(block), bytes);
}

CudaFlags::CudaFlags(std::shared_ptr<Buffer> memory) : memory_(std::move(memory)) {
  uint32_t* const flags = reinterpret_cast<uint32_t*>(memory_->data());
  for (size_t i = 0; i < memory_->size() / sizeof(uint32_t); ++i) free_.push_back(flags + i);
}

absl::StatusOr<std::shared_ptr<CudaFlags>> CudaFlags::Create(CudaMemory& memory) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> flags, memory.AllocatePinned(kFlagBytes));
  return std::shared_ptr<CudaFlags>(new CudaFlags(std::move(flags)));
}

std::shared_ptr<uint32_t> CudaFlags::Take() {
  MutexLock lock(mu_);
  if (free_.empty()) return nullptr;
  uint32_t* const flag = free_.back();
  free_.pop_back();
  std::atomic_ref<uint32_t>(*flag).store(0, std::memory_order_release);
  return {flag, [self = shared_from_this()](uint32_t* back) {
            MutexLock lock(self->mu_);
            self->free_.push_back(back);
          }};
}

}  // namespace runahead
