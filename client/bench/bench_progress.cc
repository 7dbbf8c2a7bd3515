#include "client/bench/bench_progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace runahead {
namespace {

constexpr absl::Duration kShowEvery = absl::Milliseconds(250);

}  // namespace

BenchProgress::BenchProgress(std::function<std::string()> text) : text_(std::move(text)) {
  if (isatty(STDERR_FILENO)) thread_ = std::thread([this] { Run(); });
}

BenchProgress::~BenchProgress() {
  {
    MutexLock lock(mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void BenchProgress::Run() {
  MutexLock lock(mu_);
  while (!stopped_) {
    if (changed_.WaitFor(mu_, kShowEvery) || stopped_) continue;
    std::fprintf(stderr, "\r%s\033[K", text_().c_str());
  }
  std::fprintf(stderr, "\r\033[K");
}

}  // namespace runahead
