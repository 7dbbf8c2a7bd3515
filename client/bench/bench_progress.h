// How far a load is, for who waits.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "kernels/base/mutex.h"

namespace runahead {

// Shows what `text` says on stderr, in place, a few times a second, and takes it away at its end. Silent when stderr is
// no terminal. `text` is called on a thread of its own.
class BenchProgress {
 public:
  explicit BenchProgress(std::function<std::string()> text);
  ~BenchProgress();
  BenchProgress(const BenchProgress&) = delete;
  BenchProgress& operator=(const BenchProgress&) = delete;

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_);

  const std::function<std::string()> text_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
