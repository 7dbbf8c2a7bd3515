// Streams, launches of kernels and host functions.
#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "tests/testing/cuda_emulation/block.h"
#include "tests/testing/cuda_emulation/runtime.h"

namespace runahead::cuda_emulation {
namespace {

struct Streams {
  HandleTable<cudaStream_t, StreamState> handles{"a stream"};
  Mutex mu;
  std::vector<std::shared_ptr<StreamState>> all RUNAHEAD_GUARDED_BY(mu);
  std::unordered_map<int, std::shared_ptr<StreamState>> defaults RUNAHEAD_GUARDED_BY(mu);  // by device
};

Streams& TheStreams() {
  static auto& streams = *new Streams;
  return streams;
}

}  // namespace

std::shared_ptr<StreamState> StreamState::Start(int device) {
  auto stream = std::make_shared<StreamState>(device);
  std::thread([stream] { stream->Work(); }).detach();
  return stream;
}

void StreamState::Work() {
  while (true) {
    Operation operation;
    {
      MutexLock lock(mu_);
      while (queue_.empty() && !quit_) changed_.Wait(mu_);
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.pop_front();
    }
    operation.run();
    operation = {};  // what it holds goes before anybody is told that it is done
    MutexLock lock(mu_);
    ++done_;
    changed_.NotifyAll();
  }
}

cudaError_t StreamState::Submit(Operation operation, bool capturable) {
  MutexLock lock(mu_);
  if (capture_ == nullptr) {
    queue_.push_back(std::move(operation));
    ++enqueued_;
    changed_.NotifyAll();
    return cudaSuccess;
  }
  if (capture_->spoiled) return cudaErrorStreamCaptureInvalidated;
  if (!capturable) return Spoil(capture_, cudaErrorStreamCaptureUnsupported);
  capture_->operations.push_back(std::move(operation));
  return cudaSuccess;
}

void StreamState::Synchronize() {
  MutexLock lock(mu_);
  const uint64_t last = enqueued_;
  while (done_ < last) changed_.Wait(mu_);
}

bool StreamState::Idle() {
  MutexLock lock(mu_);
  return done_ == enqueued_;
}

bool StreamState::Finished() {
  MutexLock lock(mu_);
  return quit_ && done_ == enqueued_;
}

void StreamState::Quit() {
  MutexLock lock(mu_);
  quit_ = true;
  changed_.NotifyAll();
}

std::shared_ptr<StreamState> FindStream(cudaStream_t stream) {
  Streams& streams = TheStreams();
  if (stream != nullptr) return streams.handles.Find(stream);
  MutexLock lock(streams.mu);
  std::shared_ptr<StreamState>& state = streams.defaults[CurrentDevice()];
  if (state == nullptr) {
    state = StreamState::Start(CurrentDevice());
    streams.all.push_back(state);
  }
  return state;
}

void SynchronizeDevice(int device) {
  std::vector<std::shared_ptr<StreamState>> streams;
  {
    MutexLock lock(TheStreams().mu);
    for (const auto& stream : TheStreams().all) {
      if (stream->device() == device) streams.push_back(stream);
    }
  }
  for (const auto& stream : streams) stream->Synchronize();
}

int LiveStreams() {
  return TheStreams().handles.size();
}

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread) {
  return Api("cudaLaunchKernelEx", [&] {
    const dim3 grid = config.gridDim;
    const dim3 block = config.blockDim;
    const auto stream = FindStream(config.stream);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0 ||
        grid.x > 0x7fffffffu || grid.y > 0xffffu || grid.z > 0xffffu || block.x > 1024 || block.y > 1024 ||
        block.z > 64 || block.x * block.y * block.z > 1024) {
      return cudaErrorInvalidConfiguration;
    }
    if (config.dynamicSmemBytes != 0 || config.numAttrs != 0) return cudaErrorNotSupported;
    if (stream->device() != CurrentDevice()) return cudaErrorInvalidResourceHandle;
    if (stream->capture() == nullptr) CountKernelLaunch();
    return stream->Submit({Operation::Kind::kKernel, kernel, [grid, block, kernel, thread = std::move(thread)] {
                             RunGrid(grid, block, kernel, thread);
                           }});
  });
}

}  // namespace runahead::cuda_emulation

using runahead::MutexLock;
using namespace runahead::cuda_emulation;

cudaError_t cudaStreamCreate(cudaStream_t* pStream) {
  return cudaStreamCreateWithPriority(pStream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned int flags) {
  return Api("cudaStreamCreateWithFlags", [&] { return cudaStreamCreateWithPriority(pStream, flags, 0); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned int flags, int) {
  return Api("cudaStreamCreateWithPriority", [&] {
    if ((flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) return cudaErrorInvalidValue;
    const auto stream = StreamState::Start(CurrentDevice());
    *pStream = TheStreams().handles.Add(stream);
    MutexLock lock(TheStreams().mu);
    std::erase_if(TheStreams().all, [](const auto& old) { return old->Finished(); });
    TheStreams().all.push_back(stream);
    return cudaSuccess;
  });
}

// Returns at once: what is enqueued runs on.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Api("cudaStreamDestroy", [&] {
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    TheStreams().handles.Remove(stream)->Quit();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return UnsafeApi("cudaStreamSynchronize", [&] {
    const auto state = FindStream(stream);
    if (state->capture() != nullptr) return Spoil(state->capture(), cudaErrorStreamCaptureUnsupported);
    state->Synchronize();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return UnsafeApi("cudaStreamQuery", [&] {
    const auto state = FindStream(stream);
    if (state->capture() != nullptr) return Spoil(state->capture(), cudaErrorStreamCaptureUnsupported);
    return state->Idle() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return UnsafeApi("cudaDeviceSynchronize", [&] {
    SynchronizeDevice(CurrentDevice());
    return cudaSuccess;
  });
}

// Not captured, though CUDA could: what runs on the host cannot be told from a replay which time it is.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
  return Api("cudaLaunchHostFunc", [&] {
    if (fn == nullptr) return cudaErrorInvalidValue;
    return FindStream(stream)->Submit(
        {Operation::Kind::kHostFunction, nullptr, [fn, userData] { RunHostFunction(fn, userData); }}, false);
  });
}
