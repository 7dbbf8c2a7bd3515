// A stream of the CPU device: a thread that runs closures in order.
#pragma once

#include <deque>
#include <functional>
#include <string_view>
#include <thread>

#include "kernels/base/device.h"
#include "kernels/base/mutex.h"

namespace runahead {

class CpuStream : public Stream {
 public:
  // name: the thread's, cut to 15 bytes. nice: what it steps back by (StepBack).
  CpuStream(std::string_view name, int nice);
  ~CpuStream() override;  // runs what was enqueued, then ends the thread

  // Thread-safe. Closures are destroyed (and the buffers they hold given back) before the next one runs.
  void Enqueue(std::function<void()> operation) RUNAHEAD_EXCLUDES(mu_);

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_);

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ RUNAHEAD_GUARDED_BY(mu_);
  bool ending_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it starts when all else is there
};

}  // namespace runahead
