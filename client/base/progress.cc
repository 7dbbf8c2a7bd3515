#include "client/base/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace runahead {

Progress::Progress(std::string what) : what_(std::move(what)) {
  if (isatty(STDERR_FILENO)) thread_ = std::thread([this] { Run(); });
}

void Progress::Run() {
  MutexLock lock(mu_);
  int shown = 0;  // seconds
  while (!stopped_) {
    if (changed_.WaitFor(mu_, absl::Seconds(1)) || stopped_) continue;
    std::fprintf(stderr, "\r%s: %d s\033[K", what_.c_str(), ++shown);
  }
  if (shown > 0) std::fprintf(stderr, "\r\033[K");
}

void Progress::Stop() {
  {
    MutexLock lock(mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace runahead
