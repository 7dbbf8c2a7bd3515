// Memory and copies.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "tests/testing/cuda_emulation/runtime.h"

namespace runahead::cuda_emulation {
namespace {

enum class Where { kDevice, kHostAllocated, kHostRegistered };

struct Range {
  size_t size = 0;
  Where where = Where::kDevice;
  int device = 0;
};

struct Memory {
  Mutex mu;
  std::map<uintptr_t, Range> ranges RUNAHEAD_GUARDED_BY(mu);  // by address; none overlap
  std::map<int, size_t> used RUNAHEAD_GUARDED_BY(mu);         // by device
};

Memory& TheMemory() {
  static auto& memory = *new Memory;
  return memory;
}

// What a run of bytes is in: nothing that CUDA knows, one range, or the end of one and beyond.
struct Found {
  bool known = false;
  bool whole = true;
  Range range;
  bool on_device() const { return known && range.where == Where::kDevice; }
};

Found FindRange(const void* address, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  Memory& memory = TheMemory();
  HiddenFromTsan hidden;
  MutexLock lock(memory.mu);
  auto next = memory.ranges.lower_bound(begin + std::max<size_t>(size, 1));  // the first that begins behind
  if (next == memory.ranges.begin()) return {};
  --next;
  if (next->first + next->second.size <= begin) return {};
  return {true, next->first <= begin && begin + size <= next->first + next->second.size, next->second};
}

// Memory full of 0xff, which is NaN in every element type: nobody may count on what is there.
void* Allocate(size_t size) {
  constexpr size_t kAlignment = 256;
  void* memory = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  if (memory != nullptr) std::memset(memory, 0xff, size);
  return memory;
}

cudaError_t AllocateOnDevice(void** address, size_t size, int device) {
  Memory& memory = TheMemory();
  MutexLock lock(memory.mu);
  const size_t total = TotalMemory();
  size_t& used = memory.used[device];
  if (size > total || used > total - size) return cudaErrorMemoryAllocation;
  void* allocated = Allocate(size);
  if (allocated == nullptr) return cudaErrorMemoryAllocation;
  used += size;
  memory.ranges[reinterpret_cast<uintptr_t>(allocated)] = {size, Where::kDevice, device};
  *address = allocated;
  return cudaSuccess;
}

// The range that begins at `address`, no longer known. Ends the process when there is none of that kind.
Range Forget(const char* function, void* address, Where where) {
  Memory& memory = TheMemory();
  MutexLock lock(memory.mu);
  const auto found = memory.ranges.find(reinterpret_cast<uintptr_t>(address));
  if (found == memory.ranges.end() || found->second.where != where) {
    Die("%s of %p, which is not allocated by its counterpart or was freed", function, address);
  }
  const Range range = found->second;
  memory.ranges.erase(found);
  if (where == Where::kDevice) memory.used[range.device] -= range.size;
  return range;
}

cudaError_t AddHostRange(void* address, size_t size, Where where) {
  if (FindRange(address, size).known) return cudaErrorHostMemoryAlreadyRegistered;
  Memory& memory = TheMemory();
  MutexLock lock(memory.mu);
  memory.ranges[reinterpret_cast<uintptr_t>(address)] = {size, where, 0};
  return cudaSuccess;
}

bool Fits(cudaMemcpyKind kind, const Found& to, const Found& from) {
  if (!to.whole || !from.whole) return false;
  if (kind == cudaMemcpyDefault) return true;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return to.on_device() == to_device && from.on_device() == from_device;
}

struct Copy {
  std::byte* to;
  size_t to_pitch;
  const std::byte* from;
  size_t from_pitch;
  size_t width;
  size_t height;
};

cudaError_t SubmitCopy(const Copy& copy, cudaMemcpyKind kind, cudaStream_t stream) {
  const auto queue = FindStream(stream);
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (copy.to_pitch < copy.width || copy.from_pitch < copy.width) return cudaErrorInvalidValue;
  const Found to = FindRange(copy.to, copy.to_pitch * (copy.height - 1) + copy.width);
  const Found from = FindRange(copy.from, copy.from_pitch * (copy.height - 1) + copy.width);
  if (!Fits(kind, to, from)) return cudaErrorInvalidValue;
  const cudaError_t error =
      queue->Submit({Operation::Kind::kCopy, nullptr, [copy] {
                       for (size_t row = 0; row < copy.height; ++row) {
                         std::memcpy(copy.to + row * copy.to_pitch, copy.from + row * copy.from_pitch, copy.width);
                       }
                     }});
  if (error == cudaSuccess && queue->capture() == nullptr) CountCopy();
  // Pageable memory makes the caller wait.
  if (error == cudaSuccess && queue->capture() == nullptr && (!to.known || !from.known)) queue->Synchronize();
  return error;
}

}  // namespace

void CountMemory(LiveObjects& live) {
  MutexLock lock(TheMemory().mu);
  for (const auto& [address, range] : TheMemory().ranges) {
    live.device_allocations += range.where == Where::kDevice;
    live.host_allocations += range.where == Where::kHostAllocated;
    live.host_registrations += range.where == Where::kHostRegistered;
    if (range.where == Where::kDevice) live.device_bytes += range.size;
    if (range.where == Where::kHostRegistered) live.registered_bytes += range.size;
  }
}

bool IsReachable(const void* address, size_t size) {
  const Found found = FindRange(address, size);
  return found.known && found.whole;
}

}  // namespace runahead::cuda_emulation

using runahead::MutexLock;
using namespace runahead::cuda_emulation;

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Api("cudaMemGetInfo", [&] {
    *total = TotalMemory();
    MutexLock lock(TheMemory().mu);
    const size_t used = TheMemory().used[CurrentDevice()];
    *free = *total - std::min(used, *total);
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** devPtr, size_t size) {
  return UnsafeApi("cudaMalloc", [&] {
    *devPtr = nullptr;
    return size == 0 ? cudaSuccess : AllocateOnDevice(devPtr, size, CurrentDevice());
  });
}

// Waits for the device, as CUDA's.
cudaError_t cudaFree(void* devPtr) {
  return UnsafeApi("cudaFree", [&] {
    if (devPtr == nullptr) return cudaSuccess;
    SynchronizeDevice(Forget("cudaFree", devPtr, Where::kDevice).device);
    std::free(devPtr);
    return cudaSuccess;
  });
}

cudaError_t cudaMallocAsync(void** devPtr, size_t size, cudaStream_t hStream) {
  return Api("cudaMallocAsync", [&] {
    const auto stream = FindStream(hStream);
    if (stream->capture() != nullptr) return Spoil(stream->capture(), cudaErrorStreamCaptureUnsupported);
    if (size == 0) return cudaErrorInvalidValue;
    return AllocateOnDevice(devPtr, size, stream->device());
  });
}

// The bytes can be allocated again at once, as from CUDA's pool, which makes the new owner's stream wait; the address
// lives until the stream comes here.
cudaError_t cudaFreeAsync(void* devPtr, cudaStream_t hStream) {
  return Api("cudaFreeAsync", [&] {
    const auto stream = FindStream(hStream);
    if (stream->capture() != nullptr) return Spoil(stream->capture(), cudaErrorStreamCaptureUnsupported);
    if (devPtr == nullptr) return cudaErrorInvalidValue;
    Forget("cudaFreeAsync", devPtr, Where::kDevice);
    return stream->Submit({Operation::Kind::kFree, nullptr, [devPtr] { std::free(devPtr); }});
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* memPool, int device) {
  return Api("cudaDeviceGetDefaultMemPool", [&] {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    *memPool = reinterpret_cast<cudaMemPool_t>(static_cast<uintptr_t>(device) + 1);
    return cudaSuccess;
  });
}

// Attributes and trimming have no effect: nothing is kept of what is freed.
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool, cudaMemPoolAttr, void* value) {
  return Api("cudaMemPoolSetAttribute",
             [&] { return memPool == nullptr || value == nullptr ? cudaErrorInvalidValue : cudaSuccess; });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t memPool, cudaMemPoolAttr attr, void* value) {
  return Api("cudaMemPoolGetAttribute", [&] {
    if (memPool == nullptr) return cudaErrorInvalidValue;
    if (attr != cudaMemPoolAttrUsedMemCurrent && attr != cudaMemPoolAttrReservedMemCurrent) {
      return cudaErrorNotSupported;
    }
    MutexLock lock(TheMemory().mu);
    *static_cast<uint64_t*>(value) = TheMemory().used[static_cast<int>(reinterpret_cast<uintptr_t>(memPool)) - 1];
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t memPool, size_t) {
  return Api("cudaMemPoolTrimTo", [&] { return memPool == nullptr ? cudaErrorInvalidValue : cudaSuccess; });
}

cudaError_t cudaHostAlloc(void** pHost, size_t size, unsigned int) {
  return UnsafeApi("cudaHostAlloc", [&] {
    *pHost = nullptr;
    if (size == 0) return cudaSuccess;
    void* allocated = Allocate(size);
    if (allocated == nullptr) return cudaErrorMemoryAllocation;
    *pHost = allocated;
    return AddHostRange(allocated, size, Where::kHostAllocated);
  });
}

cudaError_t cudaMallocHost(void** ptr, size_t size) {
  return cudaHostAlloc(ptr, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* ptr) {
  return UnsafeApi("cudaFreeHost", [&] {
    if (ptr == nullptr) return cudaSuccess;
    Forget("cudaFreeHost", ptr, Where::kHostAllocated);
    SynchronizeDevice(CurrentDevice());
    std::free(ptr);
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* ptr, size_t size, unsigned int) {
  return UnsafeApi("cudaHostRegister", [&] {
    if (ptr == nullptr || size == 0) return cudaErrorInvalidValue;
    return AddHostRange(ptr, size, Where::kHostRegistered);
  });
}

cudaError_t cudaHostUnregister(void* ptr) {
  return UnsafeApi("cudaHostUnregister", [&] {
    {
      MutexLock lock(TheMemory().mu);
      const auto found = TheMemory().ranges.find(reinterpret_cast<uintptr_t>(ptr));
      if (found == TheMemory().ranges.end()) return cudaErrorHostMemoryNotRegistered;
    }
    Forget("cudaHostUnregister", ptr, Where::kHostRegistered);
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetDevicePointer(void** pDevice, void* pHost, unsigned int flags) {
  return Api("cudaHostGetDevicePointer", [&] {
    const Found found = FindRange(pHost, 1);
    if (flags != 0 || !found.known || found.on_device()) return cudaErrorInvalidValue;
    *pDevice = pHost;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  return Api("cudaMemcpyAsync", [&] {
    return SubmitCopy({static_cast<std::byte*>(dst), count, static_cast<const std::byte*>(src), count, count, 1}, kind,
                      stream);
  });
}

// All have the one attribute that is given.
cudaError_t cudaMemcpyBatchAsync(void* const* dsts, const void* const* srcs, const size_t* sizes, size_t count,
                                 cudaMemcpyAttributes* attrs, size_t* attrsIdxs, size_t numAttrs, cudaStream_t stream) {
  return Api("cudaMemcpyBatchAsync", [&] {
    if (count == 0 || numAttrs != 1 || attrsIdxs[0] != 0 || stream == nullptr) return cudaErrorInvalidValue;
    if (attrs->srcAccessOrder != cudaMemcpySrcAccessOrderStream) return cudaErrorInvalidValue;
    if (FindStream(stream)->capture() != nullptr) return cudaErrorNotSupported;
    for (size_t i = 0; i < count; ++i) {
      if (sizes[i] == 0) return cudaErrorInvalidValue;
      const cudaError_t error = SubmitCopy(
          {static_cast<std::byte*>(dsts[i]), sizes[i], static_cast<const std::byte*>(srcs[i]), sizes[i], sizes[i], 1},
          cudaMemcpyDefault, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return Api("cudaMemcpy2DAsync", [&] {
    return SubmitCopy({static_cast<std::byte*>(dst), dpitch, static_cast<const std::byte*>(src), spitch, width, height},
                      kind, stream);
  });
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  return UnsafeApi("cudaMemcpy", [&] {
    const cudaError_t error = cudaMemcpyAsync(dst, src, count, kind, nullptr);
    FindStream(nullptr)->Synchronize();
    return error;
  });
}

cudaError_t cudaMemsetAsync(void* devPtr, int value, size_t count, cudaStream_t stream) {
  return Api("cudaMemsetAsync", [&] {
    const auto queue = FindStream(stream);
    if (count == 0) return cudaSuccess;
    if (!IsReachable(devPtr, count)) return cudaErrorInvalidValue;
    return queue->Submit({Operation::Kind::kSet, nullptr, [=] { std::memset(devPtr, value, count); }});
  });
}

cudaError_t cudaMemset(void* devPtr, int value, size_t count) {
  return UnsafeApi("cudaMemset", [&] { return cudaMemsetAsync(devPtr, value, count, nullptr); });
}
