// Something to look at while waiting.
#pragma once

#include <string>
#include <thread>

#include "kernels/base/mutex.h"

namespace runahead {

// Shows "Waiting for the first token: 3 s" on stderr from the first second on, in place, and takes it away again.
// Silent when stderr is no terminal. Thread-safe.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress() { Stop(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Takes the line away; nothing is shown afterwards. May be called again.
  void Stop() RUNAHEAD_EXCLUDES(mu_);

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_);

  const std::string what_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
