#include "kernels/cpu/cpu_stream.h"

#include <pthread.h>

#include <string>
#include <utility>

#include "kernels/base/thread_pool.h"

namespace runahead {

CpuStream::CpuStream(std::string_view name, int nice)
    : thread_([this, nice] {
        StepBack(nice);
        Run();
      }) {
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

void CpuStream::Enqueue(std::function<void()> operation) {
  MutexLock lock(mu_);
  queue_.push_back(std::move(operation));
  if (queue_.size() == 1) changed_.NotifyOne();
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
