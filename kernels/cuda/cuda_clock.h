// The GPU's time by the host's clock, and points of streams on it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "kernels/base/time_mark.h"

namespace runahead {

// An event of CUDA that takes the time.
class CudaTimedEvent {
 public:
  explicit CudaTimedEvent(int ordinal);
  ~CudaTimedEvent();
  CudaTimedEvent(const CudaTimedEvent&) = delete;
  CudaTimedEvent& operator=(const CudaTimedEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  const int ordinal_;
  cudaEvent_t event_ = nullptr;
};

// A moment that both know: CUDA says how much later than it another event was, and rounds that to a 24th bit.
struct CudaMoment {
  explicit CudaMoment(int ordinal) : event(ordinal) {}
  CudaTimedEvent event;
  absl::Time host;  // MonotonicNow
};

// Of one GPU. Thread-safe.
class CudaClock {
 public:
  explicit CudaClock(int ordinal);
  ~CudaClock();
  // One of the last second. To make one takes some ten microseconds, on a stream that nothing else is on.
  std::shared_ptr<const CudaMoment> Moment() RUNAHEAD_EXCLUDES(mu_);

 private:
  const int ordinal_;
  cudaStream_t stream_ = nullptr;
  Mutex mu_;
  std::shared_ptr<const CudaMoment> last_ RUNAHEAD_GUARDED_BY(mu_);
};

class CudaTimeMark final : public TimeMark {
 public:
  CudaTimeMark(int ordinal, std::shared_ptr<const CudaMoment> moment) : moment_(std::move(moment)), event_(ordinal) {}
  cudaEvent_t get() const { return event_.get(); }
  std::optional<absl::Time> time() const override;

 private:
  const std::shared_ptr<const CudaMoment> moment_;
  const CudaTimedEvent event_;
};

}  // namespace runahead
