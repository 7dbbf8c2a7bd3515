// Devices, errors and the test's control of them.
#include <cuda_runtime_api.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "tests/testing/cuda_emulation/control.h"
#include "tests/testing/cuda_emulation/runtime.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RUNAHEAD_HAS_TSAN 1
#endif
#endif

namespace runahead::cuda_emulation {
namespace {

struct Machine {
  Mutex mu;
  int devices RUNAHEAD_GUARDED_BY(mu) = 1;
  cudaError_t error RUNAHEAD_GUARDED_BY(mu) = cudaSuccess;
  size_t total_memory RUNAHEAD_GUARDED_BY(mu) = size_t{4} << 30;
  int capability RUNAHEAD_GUARDED_BY(mu) = 90;
  std::map<std::string, cudaError_t, std::less<>> failures RUNAHEAD_GUARDED_BY(mu);
  std::atomic<int64_t> kernel_launches = 0;
  std::atomic<int64_t> graph_launches = 0;
  std::atomic<int64_t> copies = 0;
  std::atomic<int64_t> graph_instantiations = 0;
};

Machine& TheMachine() {
  static auto& machine = *new Machine;
  return machine;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;
thread_local bool in_host_function = false;

// What a test asked for: an error of the machine, or of this call.
cudaError_t Failure(const char* function) {
  Machine& machine = TheMachine();
  HiddenFromTsan hidden;
  MutexLock lock(machine.mu);
  const auto failure = machine.failures.find(std::string_view(function));
  if (failure == machine.failures.end()) return machine.error;
  const cudaError_t error = failure->second;
  machine.failures.erase(failure);
  return error;
}

}  // namespace

void Die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("CUDA emulation: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputs("\n", stderr);
  va_end(arguments);
  std::abort();
}

#if defined(__SANITIZE_THREAD__) || RUNAHEAD_HAS_TSAN
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}
HiddenFromTsan::HiddenFromTsan() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
}
HiddenFromTsan::~HiddenFromTsan() {
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
HiddenFromTsan::HiddenFromTsan() = default;
HiddenFromTsan::~HiddenFromTsan() = default;
#endif

cudaError_t Api(const char* function, const std::function<cudaError_t()>& body) {
  if (in_host_function) Die("%s is called from a host function, which must not call CUDA", function);
  cudaError_t error = Failure(function);
  if (error == cudaSuccess) error = body();
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t UnsafeApi(const char* function, const std::function<cudaError_t()>& body) {
  return Api(function, [&] { return SpoilForbiddingCaptures() ? cudaErrorStreamCaptureUnsupported : body(); });
}

void RunHostFunction(cudaHostFn_t fn, void* argument) {
  in_host_function = true;
  fn(argument);
  in_host_function = false;
}

int CurrentDevice() {
  return current_device;
}

bool IsDevice(int ordinal) {
  MutexLock lock(TheMachine().mu);
  return ordinal >= 0 && ordinal < TheMachine().devices;
}

size_t TotalMemory() {
  MutexLock lock(TheMachine().mu);
  return TheMachine().total_memory;
}

void SetDevices(int count, cudaError_t error) {
  MutexLock lock(TheMachine().mu);
  TheMachine().devices = count;
  TheMachine().error = error;
}

void SetTotalMemory(size_t bytes) {
  MutexLock lock(TheMachine().mu);
  TheMachine().total_memory = bytes;
}

void SetCapability(int capability) {
  MutexLock lock(TheMachine().mu);
  TheMachine().capability = capability;
}

void FailNext(std::string_view function, cudaError_t error) {
  MutexLock lock(TheMachine().mu);
  TheMachine().failures[std::string(function)] = error;
}

void CountKernelLaunch() {
  ++TheMachine().kernel_launches;
}
void CountGraphLaunch() {
  ++TheMachine().graph_launches;
}
void CountCopy() {
  ++TheMachine().copies;
}
void CountGraphInstantiation() {
  ++TheMachine().graph_instantiations;
}
int64_t KernelLaunches() {
  return TheMachine().kernel_launches;
}
int64_t GraphLaunches() {
  return TheMachine().graph_launches;
}
int64_t Copies() {
  return TheMachine().copies;
}
int64_t GraphInstantiations() {
  return TheMachine().graph_instantiations;
}

LiveObjects CountLiveObjects() {
  LiveObjects live;
  live.streams = LiveStreams();
  live.events = LiveEvents();
  live.graphs = LiveGraphs();
  live.graph_execs = LiveGraphExecs();
  CountMemory(live);
  return live;
}

}  // namespace runahead::cuda_emulation

using runahead::MutexLock;
using namespace runahead::cuda_emulation;

cudaError_t cudaGetDeviceCount(int* count) {
  return Api("cudaGetDeviceCount", [&] {
    MutexLock lock(TheMachine().mu);
    *count = TheMachine().devices;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return Api("cudaSetDevice", [&] {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
  });
}

namespace {

int Capability() {
  MutexLock lock(TheMachine().mu);
  return TheMachine().capability;
}

}  // namespace

cudaError_t cudaGetDevice(int* device) {
  return Api("cudaGetDevice", [&] {
    *device = current_device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return Api("cudaGetDeviceProperties", [&] {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    *prop = {};
    std::snprintf(prop->name, sizeof(prop->name), "Emulated GPU");
    std::memset(prop->uuid.bytes, device + 1, sizeof(prop->uuid.bytes));
    prop->totalGlobalMem = TotalMemory();
    prop->sharedMemPerBlock = 48 << 10;
    prop->sharedMemPerBlockOptin = 227 << 10;
    prop->sharedMemPerMultiprocessor = 228 << 10;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsPerMultiProcessor = 2048;
    for (int i = 0; i < 3; ++i) prop->maxThreadsDim[i] = i < 2 ? 1024 : 64;
    for (int i = 0; i < 3; ++i) prop->maxGridSize[i] = i < 1 ? 0x7fffffff : 0xffff;
    prop->major = Capability() / 10;
    prop->minor = Capability() % 10;
    prop->multiProcessorCount = 3;
    prop->concurrentKernels = 1;
    prop->canMapHostMemory = 1;
    prop->canUseHostPointerForRegisteredMem = 1;
    prop->hostRegisterSupported = 1;
    prop->unifiedAddressing = 1;
    prop->memoryPoolsSupported = 1;
    prop->streamPrioritiesSupported = 1;
    prop->asyncEngineCount = 2;
    prop->memoryBusWidth = 5120;
    prop->l2CacheSize = 50 << 20;
    prop->pciBusID = device + 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  return Api("cudaDeviceGetAttribute", [&] {
    cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, device) != cudaSuccess) return cudaErrorInvalidDevice;
    const std::map<cudaDeviceAttr, int> values = {
        {cudaDevAttrMaxThreadsPerBlock, prop.maxThreadsPerBlock},
        {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(prop.sharedMemPerBlock)},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(prop.sharedMemPerBlockOptin)},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, static_cast<int>(prop.sharedMemPerMultiprocessor)},
        {cudaDevAttrWarpSize, prop.warpSize},
        {cudaDevAttrMultiProcessorCount, prop.multiProcessorCount},
        {cudaDevAttrIntegrated, prop.integrated},
        {cudaDevAttrCanMapHostMemory, prop.canMapHostMemory},
        {cudaDevAttrConcurrentKernels, prop.concurrentKernels},
        {cudaDevAttrPciBusId, prop.pciBusID},
        {cudaDevAttrPciDeviceId, prop.pciDeviceID},
        {cudaDevAttrPciDomainId, prop.pciDomainID},
        {cudaDevAttrL2CacheSize, prop.l2CacheSize},
        {cudaDevAttrMaxThreadsPerMultiProcessor, prop.maxThreadsPerMultiProcessor},
        {cudaDevAttrAsyncEngineCount, prop.asyncEngineCount},
        {cudaDevAttrUnifiedAddressing, prop.unifiedAddressing},
        {cudaDevAttrComputeCapabilityMajor, prop.major},
        {cudaDevAttrComputeCapabilityMinor, prop.minor},
        {cudaDevAttrStreamPrioritiesSupported, prop.streamPrioritiesSupported},
        {cudaDevAttrPageableMemoryAccess, prop.pageableMemoryAccess},
        {cudaDevAttrCanUseHostPointerForRegisteredMem, prop.canUseHostPointerForRegisteredMem},
        {cudaDevAttrHostRegisterSupported, prop.hostRegisterSupported},
        {cudaDevAttrMemoryPoolsSupported, prop.memoryPoolsSupported},
    };
    const auto found = values.find(attr);
    if (found == values.end()) return cudaErrorInvalidValue;
    *value = found->second;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* pciBusId, int len, int device) {
  return Api("cudaDeviceGetPCIBusId", [&] {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    std::snprintf(pciBusId, static_cast<size_t>(len), "0000:%02X:00.0", static_cast<unsigned>(device + 1));
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  return Api("cudaDeviceGetStreamPriorityRange", [&] {
    *leastPriority = 0;
    *greatestPriority = -5;
    return cudaSuccess;
  });
}

// Works without a driver, as CUDA's: zero then.
cudaError_t cudaDriverGetVersion(int* driverVersion) {
  MutexLock lock(TheMachine().mu);
  *driverVersion = TheMachine().error == cudaErrorInsufficientDriver ? 0 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* runtimeVersion) {
  *runtimeVersion = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaPeekAtLastError() {
  return last_error;
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

#define RUNAHEAD_CUDA_ERRORS(X)                                                            \
  X(cudaSuccess, "no error")                                                               \
  X(cudaErrorInvalidValue, "invalid argument")                                             \
  X(cudaErrorMemoryAllocation, "out of memory")                                            \
  X(cudaErrorInitializationError, "initialization error")                                  \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                       \
  X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                  \
  X(cudaErrorStubLibrary, "CUDA driver is a stub library")                                 \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient")                    \
  X(cudaErrorCallRequiresNewerDriver, "the driver is older than the call")                 \
  X(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable")      \
  X(cudaErrorInvalidDeviceFunction, "invalid device function")                             \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                               \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                      \
  X(cudaErrorNoKernelImageForDevice, "no kernel image is available for the device")        \
  X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                      \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                             \
  X(cudaErrorIllegalState, "the operation cannot be done in the present state")            \
  X(cudaErrorSymbolNotFound, "named symbol not found")                                     \
  X(cudaErrorNotReady, "device not ready")                                                 \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                   \
  X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")              \
  X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                     \
  X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the memory is mapped already")   \
  X(cudaErrorHostMemoryNotRegistered, "the host memory was not registered")                \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                  \
  X(cudaErrorNotPermitted, "operation not permitted")                                      \
  X(cudaErrorNotSupported, "operation not supported")                                      \
  X(cudaErrorSystemNotReady, "system not yet initialized")                                 \
  X(cudaErrorSystemDriverMismatch, "the driver does not fit the system")                   \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted while stream is captured") \
  X(cudaErrorStreamCaptureInvalidated, "the capture failed because of an earlier error")   \
  X(cudaErrorStreamCaptureMerge, "operation would merge two captures")                     \
  X(cudaErrorStreamCaptureUnmatched, "the capture was not begun in this stream")           \
  X(cudaErrorStreamCaptureUnjoined, "the capture has streams that were not joined")        \
  X(cudaErrorStreamCaptureIsolation, "dependency of a capture on what is outside")         \
  X(cudaErrorStreamCaptureImplicit, "implicit dependency of a capture")                    \
  X(cudaErrorCapturedEvent, "operation not permitted on an event recorded in a capture")   \
  X(cudaErrorStreamCaptureWrongThread, "the capture was begun by another thread")          \
  X(cudaErrorGraphExecUpdateFailure, "the graph does not fit the instance to update")      \
  X(cudaErrorUnknown, "unknown error")

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define RUNAHEAD_NAME(name, text) \
  case name:                      \
    return #name;
    RUNAHEAD_CUDA_ERRORS(RUNAHEAD_NAME)
#undef RUNAHEAD_NAME
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define RUNAHEAD_TEXT(name, text) \
  case name:                      \
    return text;
    RUNAHEAD_CUDA_ERRORS(RUNAHEAD_TEXT)
#undef RUNAHEAD_TEXT
  }
  return "unrecognized error code";
}
