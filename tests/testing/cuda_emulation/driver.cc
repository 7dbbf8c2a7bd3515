// The driver's functions that streams wait and signal with.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <string_view>
#include <thread>

#include "tests/testing/cuda_emulation/runtime.h"

namespace runahead::cuda_emulation {
namespace {

bool Satisfied(uint32_t found, uint32_t value, unsigned flags) {
  switch (flags) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<int32_t>(found - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return found == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (found & value) != 0;
    default:
      return ~(found | value) != 0;
  }
}

// Looks again and again: nobody tells when memory changes.
void WaitForValue(const uint32_t* address, uint32_t value, unsigned flags) {
  int looks = 0;
  while (!Satisfied(__atomic_load_n(address, __ATOMIC_ACQUIRE), value, flags)) {
    if (++looks < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

CUresult SubmitOnValue(const char* function, CUstream stream, CUdeviceptr address, std::function<void(uint32_t*)> run) {
  return static_cast<CUresult>(Api(function, [&] {
    auto* target = reinterpret_cast<uint32_t*>(address);
    const auto queue = FindStream(stream);
    if (address % 4 != 0 || !IsReachable(target, 4)) return cudaErrorInvalidValue;
    return queue->Submit({Operation::Kind::kValue, nullptr, [target, run = std::move(run)] { run(target); }}, false);
  }));
}

}  // namespace
}  // namespace runahead::cuda_emulation

using namespace runahead::cuda_emulation;

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  if (flags > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
  return SubmitOnValue("cuStreamWaitValue32", stream, addr,
                       [value, flags](uint32_t* address) { WaitForValue(address, value, flags); });
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  if (flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  return SubmitOnValue("cuStreamWriteValue32", stream, addr,
                       [value](uint32_t* address) { __atomic_store_n(address, value, __ATOMIC_RELEASE); });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** funcPtr, unsigned int cudaVersion,
                                             unsigned long long, cudaDriverEntryPointQueryResult* driverStatus) {
  return Api("cudaGetDriverEntryPointByVersion", [&] {
    struct Entry {
      void* function;
      unsigned since;
    };
    static const auto& entries = *new std::map<std::string_view, Entry>{
        {"cuStreamWaitValue32", {reinterpret_cast<void*>(&cuStreamWaitValue32), 8000}},
        {"cuStreamWriteValue32", {reinterpret_cast<void*>(&cuStreamWriteValue32), 8000}},
    };
    const auto found = entries.find(symbol);
    const cudaDriverEntryPointQueryResult status = found == entries.end() ? cudaDriverEntryPointSymbolNotFound
                                                   : found->second.since > cudaVersion
                                                       ? cudaDriverEntryPointVersionNotSufficent
                                                       : cudaDriverEntryPointSuccess;
    *funcPtr = status == cudaDriverEntryPointSuccess ? found->second.function : nullptr;
    if (driverStatus != nullptr) *driverStatus = status;
    return cudaSuccess;
  });
}
