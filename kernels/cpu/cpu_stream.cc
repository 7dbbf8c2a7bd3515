#include "kernels/cpu/cpu_stream.h"

#include <pthread.h>

#include <string>
#include <utility>

#include "kernels/base/monotonic.h"
#include "kernels/base/thread_pool.h"

namespace runahead {

CpuStream::CpuStream(std::string_view name, int nice, CallCharges charges)
    : charges_(std::move(charges)), nice_(nice), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), std::string(name.substr(0, 15)).c_str());
}

CpuStream::~CpuStream() {
  {
    MutexLock lock(mu_);
    ending_ = true;
    changed_.NotifyOne();
  }
  thread_.join();
}

void CpuStream::Charge(absl::Duration duration) const {
  if (duration <= absl::ZeroDuration()) return;
  if (charges_.spend) return charges_.spend(duration);
  const absl::Time until = MonotonicNow() + duration;
  while (MonotonicNow() < until) std::this_thread::yield();
}

void CpuStream::Enqueue(std::function<void()> operation) {
  if (in_step_) return Push(std::move(operation));
  Charge(charges_.call);
  if (charges_.launch <= absl::ZeroDuration()) return Push(std::move(operation));
  Push([this, operation = std::move(operation)] {
    Charge(charges_.launch);
    operation();
  });
}

void CpuStream::EnqueueMark(std::function<void()> operation) {
  Charge(charges_.call);
  Push(std::move(operation));
}

void CpuStream::BeginStep() {
  in_step_ = true;
  if (!std::exchange(goes_first_, true)) Push([] { SetLoopKind(LoopKind::kFirst); });
}

void CpuStream::EndStep() {
  in_step_ = false;
  if (charges_.call > absl::ZeroDuration() || charges_.launch > absl::ZeroDuration()) Enqueue([] {});
}

void CpuStream::Push(std::function<void()> operation) {
  MutexLock lock(mu_);
  queue_.push_back(std::move(operation));
  if (queue_.size() == 1) changed_.NotifyOne();
}

void CpuStream::Compute(std::function<void()> operation) {
  if (const int nice = nice_.exchange(0); nice > 0) Push([nice] { StepBack(nice); });
  Enqueue(std::move(operation));
}

void CpuStream::Run() {
  while (true) {
    std::function<void()> operation;
    {
      MutexLock lock(mu_);
      while (queue_.empty() && !ending_) changed_.Wait(mu_);
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.pop_front();
    }
    operation();
  }
}

}  // namespace runahead
