// A stream of the CPU device: a thread that runs closures in order. Once it has had a step (BeginStep) its ops go
// before those of streams that had none: where both have some they take turns, in short parts (TurnOrder).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <string_view>
#include <thread>

#include "absl/time/time.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Time that calls and launches take where the CPU stands for a GPU. The thread does nothing else meanwhile.
struct CallCharges {
  absl::Duration call;                             // of the thread that enqueues something
  absl::Duration launch;                           // of the stream, before an op or a copy
  std::function<void(absl::Duration)> spend = {};  // tests'; else the thread stays awake
};

class CpuStream : public Stream {
 public:
  // name: the thread's, cut to 15 bytes. nice: what it steps back by (StepBack) before the first thing that it
  // computes. A stream that only copies does not, as a GPU's copies are quick whatever its host does.
  CpuStream(std::string_view name, int nice, CallCharges charges = {});
  ~CpuStream() override;  // runs what was enqueued, then ends the thread

  // A copy. Thread-safe, but for steps. Closures are destroyed (and the buffers they hold given back) before the next
  // one runs.
  void Enqueue(std::function<void()> operation) RUNAHEAD_EXCLUDES(mu_);
  // The same of an op, which computes.
  void Compute(std::function<void()> operation) RUNAHEAD_EXCLUDES(mu_);
  // An event, a wait or a function of the host: these are calls and no launches.
  void EnqueueMark(std::function<void()> operation) RUNAHEAD_EXCLUDES(mu_);
  // Between the two nothing is charged for, as all is one launch, which is.
  void BeginStep();
  void EndStep() RUNAHEAD_EXCLUDES(mu_);

 private:
  void Push(std::function<void()> operation) RUNAHEAD_EXCLUDES(mu_);
  void Charge(absl::Duration duration) const;
  void Run() RUNAHEAD_EXCLUDES(mu_);

  const CallCharges charges_;
  bool in_step_ = false;
  bool goes_first_ = false;
  std::atomic<int> nice_;  // 0 once it has stepped back
  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ RUNAHEAD_GUARDED_BY(mu_);
  bool ending_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it starts when all else is there
};

}  // namespace runahead
