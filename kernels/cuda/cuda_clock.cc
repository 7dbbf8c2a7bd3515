#include "kernels/cuda/cuda_clock.h"

#include "kernels/base/monotonic.h"
#include "kernels/cuda/cuda_status.h"

namespace runahead {

CudaTimedEvent::CudaTimedEvent(int ordinal) : ordinal_(ordinal) {
  UseGpu(ordinal);
  CudaMust(cudaEventCreateWithFlags(&event_, cudaEventDefault), "making an event");
}

CudaTimedEvent::~CudaTimedEvent() {
  UseGpu(ordinal_);
  CudaMust(cudaEventDestroy(event_), "ending an event");
}

CudaClock::CudaClock(int ordinal) : ordinal_(ordinal) {
  UseGpu(ordinal);
  CudaMust(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

CudaClock::~CudaClock() {
  UseGpu(ordinal_);
  CudaMust(cudaStreamDestroy(stream_), "ending a stream");
}

std::shared_ptr<const CudaMoment> CudaClock::Moment() {
  constexpr absl::Duration kLife = absl::Seconds(1);  // a 24th bit of which is below a tenth of a microsecond
  MutexLock lock(mu_);
  if (last_ != nullptr && MonotonicNow() - last_->host < kLife) return last_;
  UseGpu(ordinal_);
  auto moment = std::make_shared<CudaMoment>(ordinal_);
  CudaMust(cudaEventRecord(moment->event.get(), stream_), "recording an event");
  CudaMust(cudaEventSynchronize(moment->event.get()), "asking for the time");
  moment->host = MonotonicNow();
  last_ = std::move(moment);
  return last_;
}

std::optional<absl::Time> CudaTimeMark::time() const {
  float ms = 0;
  const cudaError_t code = cudaEventElapsedTime(&ms, moment_->event.get(), event_.get());
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return std::nullopt;
  }
  CudaMust(code, "taking the time of an event");
  return moment_->host + absl::Milliseconds(static_cast<double>(ms));
}

}  // namespace runahead
