// Events.
#include <cuda_runtime_api.h>

#include <chrono>

#include "tests/testing/cuda_emulation/runtime.h"

namespace runahead::cuda_emulation {
namespace {

// One record of an event: what waits for it waits for this one, whatever the event is recorded for later.
struct Mark {
  Mutex mu;
  CondVar changed;
  bool done RUNAHEAD_GUARDED_BY(mu) = false;
  std::chrono::steady_clock::time_point when RUNAHEAD_GUARDED_BY(mu);
  std::shared_ptr<Capture> capture;  // that recorded it; null outside

  void Fire() {
    MutexLock lock(mu);
    done = true;
    when = std::chrono::steady_clock::now();
    changed.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mu);
    while (!done) changed.Wait(mu);
  }
  bool fired() {
    MutexLock lock(mu);
    return done;
  }
  std::chrono::steady_clock::time_point time() {
    MutexLock lock(mu);
    return when;
  }
};

struct Event {
  int device = 0;
  bool timed = false;
  Mutex mu;
  std::shared_ptr<Mark> last RUNAHEAD_GUARDED_BY(mu);  // null: never recorded

  std::shared_ptr<Mark> mark() {
    MutexLock lock(mu);
    return last;
  }
};

HandleTable<cudaEvent_t, Event>& TheEvents() {
  static auto& events = *new HandleTable<cudaEvent_t, Event>("an event");
  return events;
}

cudaError_t WaitInStream(StreamState& stream, const std::shared_ptr<Mark>& mark) {
  if (mark == nullptr) return cudaSuccess;
  const auto capture = stream.capture();
  if (capture != nullptr && mark->capture == capture) return cudaSuccess;  // it is one stream: in order already
  if (capture != nullptr) return Spoil(capture, cudaErrorStreamCaptureIsolation);
  if (mark->capture != nullptr) return cudaErrorCapturedEvent;
  return stream.Submit({Operation::Kind::kEvent, nullptr, [mark] { mark->Wait(); }});
}

}  // namespace

int LiveEvents() {
  return TheEvents().size();
}

}  // namespace runahead::cuda_emulation

using runahead::MutexLock;
using namespace runahead::cuda_emulation;

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return Api("cudaEventCreateWithFlags", [&] {
    if ((flags & ~static_cast<unsigned>(cudaEventBlockingSync | cudaEventDisableTiming)) != 0) {
      return cudaErrorInvalidValue;
    }
    auto state = std::make_shared<Event>();
    state->device = CurrentDevice();
    state->timed = (flags & cudaEventDisableTiming) == 0;
    *event = TheEvents().Add(state);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Api("cudaEventRecord", [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    const auto state = TheEvents().Find(event);
    const auto queue = FindStream(stream);
    if (state->device != queue->device()) return cudaErrorInvalidResourceHandle;
    const auto mark = std::make_shared<Mark>();
    mark->capture = queue->capture();
    if (mark->capture != nullptr && mark->capture->spoiled) return cudaErrorStreamCaptureInvalidated;
    {
      MutexLock lock(state->mu);
      state->last = mark;
    }
    if (mark->capture != nullptr) return cudaSuccess;
    return queue->Submit({Operation::Kind::kEvent, nullptr, [mark] { mark->Fire(); }});
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return Api("cudaStreamWaitEvent", [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (flags != cudaEventWaitDefault) return cudaErrorInvalidValue;
    return WaitInStream(*FindStream(stream), TheEvents().Find(event)->mark());
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return UnsafeApi("cudaEventSynchronize", [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    const auto mark = TheEvents().Find(event)->mark();
    if (mark == nullptr) return cudaSuccess;
    if (mark->capture != nullptr) return cudaErrorCapturedEvent;
    mark->Wait();
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return UnsafeApi("cudaEventQuery", [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    const auto mark = TheEvents().Find(event)->mark();
    if (mark == nullptr) return cudaSuccess;
    if (mark->capture != nullptr) return cudaErrorCapturedEvent;
    return mark->fired() ? cudaSuccess : cudaErrorNotReady;
  });
}

// What waits for it goes on waiting for its last record.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Api("cudaEventDestroy", [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    TheEvents().Remove(event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return Api("cudaEventElapsedTime", [&] {
    const auto first = TheEvents().Find(start);
    const auto last = TheEvents().Find(end);
    const auto from = first->mark();
    const auto to = last->mark();
    if (!first->timed || !last->timed || first->device != last->device || from == nullptr || to == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!from->fired() || !to->fired()) return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(to->time() - from->time()).count();
    return cudaSuccess;
  });
}
