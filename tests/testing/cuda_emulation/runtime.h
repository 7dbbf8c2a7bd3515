// What the files of the emulated CUDA runtime share. Where CUDA says that behaviour is undefined, or where a mistake
// would go unnoticed, the process ends with a message: a call of the API from a host function, the use of what was
// destroyed, freeing what was not allocated.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kernels/base/mutex.h"
#include "tests/testing/cuda_emulation/control.h"

namespace runahead::cuda_emulation {

// Prints "CUDA emulation: ..." and aborts.
[[noreturn]] void Die(const char* format, ...) __attribute__((format(printf, 1, 2)));

// For its life tsan sees neither what this thread reads and writes nor its locks. For what is taken in every call of
// the API: else each call would put all that happened before earlier calls of other threads in order, and hide their
// races.
class HiddenFromTsan {
 public:
  HiddenFromTsan();
  ~HiddenFromTsan();
};

// Every function of the API but those that tell of errors runs its `body` in here: keeps the thread's last error,
// answers for a machine without a driver or GPU, fails when the test asked for it (control.h).
cudaError_t Api(const char* function, const std::function<cudaError_t()>& body);
// The same for functions that CUDA forbids while a stream is captured: they spoil the capture.
cudaError_t UnsafeApi(const char* function, const std::function<cudaError_t()>& body);

// Of the calling thread.
int CurrentDevice();
bool IsDevice(int ordinal);
// Whether CUDA's rules forbid an unsafe call now, for this or another thread captures a stream. Spoils those captures.
bool SpoilForbiddingCaptures();

// Handles are never reused, so that a stale one is known.
template <typename Handle, typename T>
class HandleTable {
 public:
  explicit HandleTable(const char* what) : what_(what) {}

  Handle Add(std::shared_ptr<T> object) {
    MutexLock lock(mu_);
    next_ += 16;
    objects_.emplace(reinterpret_cast<Handle>(next_), std::move(object));
    return reinterpret_cast<Handle>(next_);
  }
  // Ends the process when there is none.
  std::shared_ptr<T> Find(Handle handle) {
    HiddenFromTsan hidden;
    MutexLock lock(mu_);
    const auto found = objects_.find(handle);
    if (found == objects_.end())
      Die("use of %s %p, which was destroyed or never made", what_, static_cast<void*>(handle));
    return found->second;
  }
  std::shared_ptr<T> Remove(Handle handle) {
    std::shared_ptr<T> object = Find(handle);
    MutexLock lock(mu_);
    objects_.erase(handle);
    return object;
  }
  int size() {
    MutexLock lock(mu_);
    return static_cast<int>(objects_.size());
  }

 private:
  const char* const what_;
  Mutex mu_;
  uintptr_t next_ RUNAHEAD_GUARDED_BY(mu_) = 0x7000;
  std::unordered_map<Handle, std::shared_ptr<T>> objects_ RUNAHEAD_GUARDED_BY(mu_);
};

// What a stream does, one after the other, and what graphs are made of.
struct Operation {
  enum class Kind { kKernel, kCopy, kSet, kHostFunction, kEvent, kValue, kFree, kGraph };
  Kind kind = Kind::kKernel;
  const void* kernel = nullptr;
  std::function<void()> run;
};

// What a stream is given between cudaStreamBeginCapture and cudaStreamEndCapture.
struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;             // that began it
  std::vector<Operation> operations;  // used under the stream's lock
  std::atomic<bool> spoiled = false;
};

// A queue and the thread that works it off.
class StreamState : public std::enable_shared_from_this<StreamState> {
 public:
  static std::shared_ptr<StreamState> Start(int device);
  explicit StreamState(int device) : device_(device) {}

  int device() const { return device_; }
  // Enqueues, or records when the stream is captured. cudaErrorStreamCaptureUnsupported, and the capture is spoiled,
  // for what is not `capturable`; cudaErrorStreamCaptureInvalidated when it was spoiled before.
  cudaError_t Submit(Operation operation, bool capturable = true);
  // Waits for what has been enqueued.
  void Synchronize();
  bool Idle();
  // The thread ends when the queue is empty.
  void Quit();
  // Whether it has been told to and all is done.
  bool Finished();

  cudaError_t BeginCapture(cudaStreamCaptureMode mode);
  cudaError_t EndCapture(std::vector<Operation>* operations);
  // Null when the stream is not captured.
  std::shared_ptr<Capture> capture();

 private:
  void Work();

  const int device_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Operation> queue_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t enqueued_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t done_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool quit_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::shared_ptr<Capture> capture_ RUNAHEAD_GUARDED_BY(mu_);
};

// The stream of a handle: null is the default stream of the current device.
std::shared_ptr<StreamState> FindStream(cudaStream_t stream);
// Waits for all streams of `device`, also those that are destroyed and not done.
void SynchronizeDevice(int device);
// Marks `capture` as spoiled and returns `error`, if there is a capture; cudaSuccess if not.
cudaError_t Spoil(const std::shared_ptr<Capture>& capture, cudaError_t error);
// Runs fn(argument) as a host function: it must not call the API.
void RunHostFunction(cudaHostFn_t fn, void* argument);

void CountKernelLaunch();
void CountGraphLaunch();
void CountCopy();
void CountGraphInstantiation();
// What CountLiveObjects adds up.
int LiveStreams();
int LiveEvents();
int LiveGraphs();
int LiveGraphExecs();
void CountMemory(LiveObjects& live);
size_t TotalMemory();
// Whether the bytes are device memory, or host memory that was allocated or registered: what the GPU may touch.
bool IsReachable(const void* address, size_t size);

}  // namespace runahead::cuda_emulation
