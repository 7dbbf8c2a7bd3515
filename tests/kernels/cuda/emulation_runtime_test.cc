// That the emulated CUDA runtime keeps the order, the rules and the errors of CUDA's.
#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"
#include "tests/kernels/cuda/emulation_kernels.h"
#include "tests/testing/await_change.h"
#include "tests/testing/cuda_emulation/control.h"

namespace runahead {
namespace {

using cuda_emulation::CountLiveObjects;

#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)
#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)

// What a host function waits at until the test lets it go.
class Gate {
 public:
  void Open() {
    MutexLock lock(mu_);
    open_ = true;
    changed_.NotifyAll();
  }
  static void Wait(void* self) {
    auto& gate = *static_cast<Gate*>(self);
    MutexLock lock(gate.mu_);
    testing::ChangeWait wait("the test opens the gate");
    while (!gate.open_) {
      if (!wait.Next(gate.mu_, gate.changed_)) return;
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool open_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

// Two streams, an event, and eight ints on the device and in pinned memory; nothing may be left behind.
class EmulatedRuntime : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 8 * sizeof(int);

  void SetUp() override {
    before_ = CountLiveObjects();
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ASSERT_CUDA(cudaStreamCreateWithPriority(&other_, cudaStreamNonBlocking, -1));
    ASSERT_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&device_), kBytes));
    ASSERT_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&host_), kBytes, cudaHostAllocDefault));
    ASSERT_CUDA(cudaMemset(device_, 0, kBytes));
    ASSERT_CUDA(cudaDeviceSynchronize());
  }
  void TearDown() override {
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    EXPECT_CUDA(cudaStreamSynchronize(other_));
    EXPECT_CUDA(cudaFreeHost(host_));
    EXPECT_CUDA(cudaFree(device_));
    EXPECT_CUDA(cudaEventDestroy(event_));
    EXPECT_CUDA(cudaStreamDestroy(other_));
    EXPECT_CUDA(cudaStreamDestroy(stream_));
    EXPECT_EQ(CountLiveObjects(), before_);
    cudaGetLastError();
  }

  cudaError_t Add(int summand, cudaStream_t stream) { return LaunchAdd(device_, summand, 1, 8, stream); }
  int Read(cudaStream_t stream) {
    EXPECT_CUDA(cudaMemcpyAsync(host_, device_, kBytes, cudaMemcpyDefault, stream));
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    return host_[7];
  }
  // What `enqueue` puts on stream_, as a graph; null when the capture failed.
  template <typename Enqueue>
  cudaGraph_t CaptureGraph(Enqueue enqueue) {
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    enqueue();
    capture_result_ = cudaStreamEndCapture(stream_, &graph);
    return graph;
  }

  cuda_emulation::LiveObjects before_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int* device_ = nullptr;
  int* host_ = nullptr;
  cudaError_t capture_result_ = cudaSuccess;
};
using EmulatedRuntimeDeathTest = EmulatedRuntime;

TEST_F(EmulatedRuntime, AStreamKeepsItsOrder) {
  EXPECT_CUDA(Add(3, stream_));
  EXPECT_CUDA(cudaMemsetAsync(device_, 0, kBytes, stream_));
  EXPECT_CUDA(Add(4, stream_));
  EXPECT_EQ(Read(stream_), 4);
}

TEST_F(EmulatedRuntime, StreamsRunBesideEachOther) {
  Gate gate;
  EXPECT_CUDA(cudaLaunchHostFunc(stream_, &Gate::Wait, &gate));
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_CUDA(Add(1, other_));
  EXPECT_EQ(Read(other_), 1);  // while stream_ waits
  gate.Open();
  EXPECT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_CUDA(cudaStreamQuery(stream_));
}

TEST_F(EmulatedRuntime, AStreamWaitsForAnEventOfAnother) {
  Gate gate;
  EXPECT_CUDA(cudaLaunchHostFunc(stream_, &Gate::Wait, &gate));
  EXPECT_CUDA(Add(5, stream_));
  EXPECT_CUDA(cudaEventRecord(event_, stream_));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  EXPECT_CUDA(cudaStreamWaitEvent(other_, event_, 0));
  EXPECT_CUDA(cudaEventRecord(event_, stream_));  // later records do not matter to that wait
  EXPECT_CUDA(cudaMemcpyAsync(host_, device_, kBytes, cudaMemcpyDeviceToHost, other_));
  EXPECT_EQ(cudaStreamQuery(other_), cudaErrorNotReady);
  gate.Open();
  EXPECT_CUDA(cudaStreamSynchronize(other_));
  EXPECT_EQ(host_[0], 5);
  EXPECT_CUDA(cudaEventSynchronize(event_));
  EXPECT_CUDA(cudaEventQuery(event_));
}

TEST_F(EmulatedRuntime, WhatWaitsForADestroyedEventStillWaits) {
  Gate gate;
  cudaEvent_t event;
  ASSERT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  EXPECT_CUDA(cudaEventQuery(event));  // never recorded
  EXPECT_CUDA(cudaLaunchHostFunc(stream_, &Gate::Wait, &gate));
  EXPECT_CUDA(cudaEventRecord(event, stream_));
  EXPECT_CUDA(cudaStreamWaitEvent(other_, event, 0));
  EXPECT_CUDA(cudaEventDestroy(event));
  EXPECT_EQ(cudaStreamQuery(other_), cudaErrorNotReady);
  gate.Open();
  EXPECT_CUDA(cudaStreamSynchronize(other_));
}

TEST_F(EmulatedRuntime, EventsTellTimeWhenAskedTo) {
  cudaEvent_t start;
  cudaEvent_t end;
  ASSERT_CUDA(cudaEventCreate(&start));
  ASSERT_CUDA(cudaEventCreate(&end));
  EXPECT_CUDA(cudaEventRecord(start, stream_));
  EXPECT_CUDA(Add(1, stream_));
  EXPECT_CUDA(cudaEventRecord(end, stream_));
  EXPECT_CUDA(cudaEventSynchronize(end));
  float ms = -1;
  EXPECT_CUDA(cudaEventElapsedTime(&ms, start, end));
  EXPECT_GE(ms, 0);
  EXPECT_CUDA(cudaEventRecord(event_, stream_));
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, event_), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaEventDestroy(start));
  EXPECT_CUDA(cudaEventDestroy(end));
}

TEST_F(EmulatedRuntime, ADestroyedStreamFinishesItsWork) {
  Gate gate;
  cudaStream_t stream;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  EXPECT_CUDA(cudaLaunchHostFunc(stream, &Gate::Wait, &gate));
  EXPECT_CUDA(Add(6, stream));
  EXPECT_CUDA(cudaStreamDestroy(stream));
  gate.Open();
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(Read(stream_), 6);
}

TEST_F(EmulatedRuntime, StreamsWaitForAndWriteValues) {
  void* wait_entry = nullptr;
  void* write_entry = nullptr;
  cudaDriverEntryPointQueryResult status;
  ASSERT_CUDA(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &wait_entry, 11070, cudaEnableDefault, &status));
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  ASSERT_CUDA(
      cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &write_entry, 11070, cudaEnableDefault, &status));
  const auto wait = reinterpret_cast<decltype(&cuStreamWaitValue32)>(wait_entry);
  const auto write = reinterpret_cast<decltype(&cuStreamWriteValue32)>(write_entry);
  host_[0] = 0;
  host_[1] = 0;
  void* mapped = nullptr;
  ASSERT_CUDA(cudaHostGetDevicePointer(&mapped, host_, 0));
  const auto address = reinterpret_cast<CUdeviceptr>(mapped);
  EXPECT_EQ(wait(stream_, address, 2, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  EXPECT_EQ(write(stream_, address + 4, 7, CU_STREAM_WRITE_VALUE_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  std::atomic_ref<int>(host_[0]).store(1);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  std::atomic_ref<int>(host_[0]).store(3);
  EXPECT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(host_[1], 7);
  EXPECT_EQ(wait(stream_, address + 1, 0, 0), CUDA_ERROR_INVALID_VALUE);
  uint32_t pageable = 0;
  EXPECT_EQ(wait(stream_, reinterpret_cast<CUdeviceptr>(&pageable), 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EmulatedRuntime, UnknownDriverFunctionsAreNotFound) {
  void* entry = this;
  cudaDriverEntryPointQueryResult status;
  EXPECT_CUDA(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &entry, 13000, cudaEnableDefault, &status));
  EXPECT_EQ(entry, nullptr);
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
}

TEST_F(EmulatedRuntime, AGraphRunsWhatWasCapturedEveryTimeItIsLaunched) {
  int summand = 2;
  const cudaGraph_t graph = CaptureGraph([&] {
    EXPECT_CUDA(Add(summand, stream_));
    EXPECT_CUDA(cudaEventRecord(event_, stream_));
    EXPECT_CUDA(cudaStreamWaitEvent(stream_, event_, 0));
    EXPECT_CUDA(cudaMemcpyAsync(host_, device_, kBytes, cudaMemcpyDefault, stream_));
    summand = 1000;  // the value at capture counts
  });
  ASSERT_CUDA(capture_result_);
  EXPECT_EQ(Read(other_), 0);  // capturing does not run
  cudaGraphExec_t exec;
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  const int64_t kernels = cuda_emulation::KernelLaunches();
  const int64_t graphs = cuda_emulation::GraphLaunches();
  for (int i = 1; i <= 3; ++i) {
    EXPECT_CUDA(cudaGraphLaunch(exec, other_));
    EXPECT_CUDA(cudaStreamSynchronize(other_));
    EXPECT_EQ(host_[3], 2 * i);
  }
  EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
  EXPECT_CUDA(cudaGraphExecDestroy(exec));  // what is launched still runs
  EXPECT_EQ(Read(stream_), 8);
  EXPECT_EQ(cuda_emulation::KernelLaunches(), kernels);
  EXPECT_EQ(cuda_emulation::GraphLaunches(), graphs + 4);
}

TEST_F(EmulatedRuntime, AnInstanceTakesANewGraphOfTheSameShapeOnly) {
  const cudaGraph_t first = CaptureGraph([&] { EXPECT_CUDA(Add(1, stream_)); });
  const cudaGraph_t same = CaptureGraph([&] { EXPECT_CUDA(Add(10, stream_)); });
  const cudaGraph_t longer = CaptureGraph([&] {
    EXPECT_CUDA(Add(1, stream_));
    EXPECT_CUDA(Add(1, stream_));
  });
  const cudaGraph_t another = CaptureGraph([&] { EXPECT_CUDA(LaunchShuffles(device_, stream_)); });
  cudaGraphExec_t exec;
  ASSERT_CUDA(cudaGraphInstantiate(&exec, first, 0));
  cudaGraphExecUpdateResultInfo info;
  EXPECT_CUDA(cudaGraphExecUpdate(exec, same, &info));
  EXPECT_EQ(cudaGraphExecUpdate(exec, longer, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(cudaGraphExecUpdate(exec, another, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorFunctionChanged);
  EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
  EXPECT_EQ(Read(stream_), 10);
  for (const cudaGraph_t graph : {first, same, longer, another}) EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
}

TEST_F(EmulatedRuntime, WhatCannotBeCapturedSpoilsTheCapture) {
  Gate gate;
  gate.Open();
  ASSERT_CUDA(cudaEventRecord(event_, other_));
  ASSERT_CUDA(cudaStreamSynchronize(other_));
  void* allocated = nullptr;
  struct Case {
    cudaError_t expected;
    std::function<cudaError_t()> call;
  };
  const std::vector<Case> cases = {
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaLaunchHostFunc(stream_, &Gate::Wait, &gate); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaMallocAsync(&allocated, 4, stream_); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&allocated, 4); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream_); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaEventQuery(event_); }},
      {cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(stream_, event_, 0); }},
      {cudaErrorStreamCaptureUnsupported,
       [&] {
         return static_cast<cudaError_t>(
             cuStreamWaitValue32(stream_, reinterpret_cast<CUdeviceptr>(host_), 0, CU_STREAM_WAIT_VALUE_GEQ));
       }},
  };
  for (const Case& one : cases) {
    const cudaGraph_t graph = CaptureGraph([&] {
      EXPECT_CUDA(Add(1, stream_));
      EXPECT_EQ(one.call(), one.expected);
      EXPECT_EQ(Add(1, stream_), cudaErrorStreamCaptureInvalidated);
    });
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(capture_result_, cudaErrorStreamCaptureInvalidated);
  }
  EXPECT_CUDA(Add(1, stream_));  // the stream lives on
  EXPECT_EQ(Read(stream_), 1);
}

TEST_F(EmulatedRuntime, OtherThreadsAreBoundByAGlobalCaptureOnly) {
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
    ASSERT_CUDA(cudaStreamBeginCapture(stream_, mode));
    cudaError_t queried = cudaErrorUnknown;
    std::thread([&] { queried = cudaEventQuery(event_); }).join();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    const bool global = mode == cudaStreamCaptureModeGlobal;
    EXPECT_EQ(queried, global ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
    EXPECT_EQ(ended, global ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    if (graph != nullptr) {
      EXPECT_CUDA(cudaGraphDestroy(graph));
    }
  }
}

TEST_F(EmulatedRuntime, AnEventOfACaptureIsOfNoUseOutside) {
  const cudaGraph_t graph = CaptureGraph([&] { EXPECT_CUDA(cudaEventRecord(event_, stream_)); });
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaErrorCapturedEvent);
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(EmulatedRuntime, DeviceMemoryIsBoundedAndCounted) {
  size_t free_before = 0;
  size_t total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free_before, &total));
  cuda_emulation::SetTotalMemory(total - free_before + 1024);
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&first, 1024, stream_));
  EXPECT_EQ(cudaMallocAsync(&second, 1, stream_), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&second, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(CountLiveObjects().device_bytes, kBytes + 1024);
  size_t free_now = 1;
  ASSERT_CUDA(cudaMemGetInfo(&free_now, &total));
  EXPECT_EQ(free_now, 0u);
  EXPECT_CUDA(cudaFreeAsync(first, stream_));
  EXPECT_CUDA(cudaMallocAsync(&second, 1024, other_));
  EXPECT_CUDA(cudaFreeAsync(second, other_));
  EXPECT_EQ(cudaMallocAsync(&second, 0, stream_), cudaErrorInvalidValue);
  cuda_emulation::SetTotalMemory(size_t{4} << 30);
}

TEST_F(EmulatedRuntime, FreshMemoryIsGarbage) {
  float* fresh = nullptr;
  ASSERT_CUDA(cudaMallocAsync(reinterpret_cast<void**>(&fresh), kBytes, stream_));
  EXPECT_CUDA(cudaMemcpyAsync(host_, fresh, kBytes, cudaMemcpyDeviceToHost, stream_));
  EXPECT_CUDA(cudaFreeAsync(fresh, stream_));
  EXPECT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(host_[7])));
}

TEST_F(EmulatedRuntime, CopiesStayInsideWhatIsAllocated) {
  std::vector<int> pageable(9, 1);
  EXPECT_EQ(cudaMemcpyAsync(device_, pageable.data(), kBytes + 4, cudaMemcpyDefault, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(pageable.data(), device_ + 1, kBytes, cudaMemcpyDefault, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device_, host_, kBytes, cudaMemcpyDeviceToHost, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device_, 0, kBytes + 1, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(pageable.data(), 0, 4, stream_), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaMemcpyAsync(device_, pageable.data(), kBytes, cudaMemcpyDefault, stream_));
  pageable[7] = 2;  // the copy is done: the memory is pageable
  EXPECT_EQ(Read(stream_), 1);
}

TEST_F(EmulatedRuntime, CopiesOfRowsLeaveTheirGapsAlone) {
  for (int i = 0; i < 8; ++i) host_[i] = i;
  EXPECT_CUDA(cudaMemcpy2DAsync(device_, 16, host_, 12, 8, 2, cudaMemcpyHostToDevice, stream_));
  EXPECT_CUDA(cudaMemcpyAsync(host_, device_, kBytes, cudaMemcpyDefault, stream_));
  EXPECT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(std::vector<int>(host_, host_ + 8), (std::vector<int>{0, 1, 0, 0, 3, 4, 0, 0}));
}

TEST_F(EmulatedRuntime, HostMemoryIsRegisteredOnce) {
  std::vector<int> memory(1024);
  EXPECT_CUDA(cudaHostRegister(memory.data(), 4096, cudaHostRegisterDefault));
  EXPECT_EQ(cudaHostRegister(memory.data() + 1, 4, cudaHostRegisterDefault), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(CountLiveObjects().host_registrations, before_.host_registrations + 1);
  void* mapped = nullptr;
  EXPECT_CUDA(cudaHostGetDevicePointer(&mapped, memory.data() + 5, 0));
  EXPECT_EQ(mapped, memory.data() + 5);
  EXPECT_CUDA(cudaHostUnregister(memory.data()));
  EXPECT_EQ(cudaHostUnregister(memory.data()), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaHostGetDevicePointer(&mapped, memory.data(), 0), cudaErrorInvalidValue);
}

TEST_F(EmulatedRuntime, ADeviceIsChosenByThread) {
  cuda_emulation::SetDevices(2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  std::thread([&] {
    EXPECT_CUDA(cudaSetDevice(1));
    EXPECT_EQ(Add(1, stream_), cudaErrorInvalidResourceHandle);  // a stream of device 0
    cudaStream_t stream;
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    EXPECT_CUDA(Add(1, stream));
    EXPECT_EQ(cudaEventRecord(event_, stream), cudaErrorInvalidResourceHandle);
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    EXPECT_CUDA(cudaStreamDestroy(stream));
  }).join();
  int device = -1;
  EXPECT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  EXPECT_EQ(Read(stream_), 1);
  cuda_emulation::SetDevices(1);
}

TEST_F(EmulatedRuntime, WithoutADriverNothingWorksAndNothingIsWritten) {
  for (const auto error : {cudaErrorInsufficientDriver, cudaErrorNoDevice}) {
    cuda_emulation::SetDevices(0, error);
    int count = 77;
    EXPECT_EQ(cudaGetDeviceCount(&count), error);
    EXPECT_EQ(count, 77);
    EXPECT_EQ(cudaSetDevice(0), error);
    EXPECT_EQ(cudaGetLastError(), error);
    cuda_emulation::SetDevices(1);
  }
  int count = 0;
  EXPECT_CUDA(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 1);
}

TEST_F(EmulatedRuntime, TellsWhatADeviceIs) {
  cudaDeviceProp properties;
  ASSERT_CUDA(cudaGetDeviceProperties(&properties, 0));
  EXPECT_EQ(std::string(properties.name), "Emulated GPU");
  int value = 0;
  EXPECT_CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
  EXPECT_EQ(value, properties.major);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 1), cudaErrorInvalidDevice);
  EXPECT_EQ(std::string(cudaGetErrorName(cudaErrorMemoryAllocation)), "cudaErrorMemoryAllocation");
  EXPECT_EQ(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)), "out of memory");
}

TEST_F(EmulatedRuntimeDeathTest, MistakesEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        cudaLaunchHostFunc(
            stream_, [](void*) { cudaGetLastError(), cudaDeviceSynchronize(); }, nullptr);
        cudaStreamSynchronize(stream_);
      },
      "cudaDeviceSynchronize is called from a host function");
  EXPECT_DEATH(
      {
        cudaStreamDestroy(stream_);
        cudaStreamSynchronize(stream_);
      },
      "use of a stream 0x[0-9a-f]+, which was destroyed");
  EXPECT_DEATH(
      {
        cudaEventDestroy(event_);
        cudaEventRecord(event_, stream_);
      },
      "use of an event");
  EXPECT_DEATH(
      {
        cudaFree(device_);
        cudaFree(device_);
      },
      "cudaFree of 0x[0-9a-f]+, which is not allocated");
  EXPECT_DEATH(cudaFreeAsync(host_, stream_), "cudaFreeAsync of");
}

}  // namespace
}  // namespace runahead
