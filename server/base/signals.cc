#include "server/base/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>

#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

sigset_t SignalsWaitedFor() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

StopSignal::StopSignal() {
  signal(SIGPIPE, SIG_IGN);
  const sigset_t signals = SignalsWaitedFor();
  RUNAHEAD_CHECK(pthread_sigmask(SIG_BLOCK, &signals, &before_) == 0);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC);
  end_fd_ = eventfd(0, EFD_CLOEXEC);
  RUNAHEAD_CHECK(signal_fd_ >= 0 && end_fd_ >= 0);
  thread_ = std::thread([this] { Run(); });
}

StopSignal::~StopSignal() {
  const uint64_t one = 1;
  RUNAHEAD_CHECK(write(end_fd_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(end_fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopSignal::Run() {
  NameThread("signals");
  bool second = false;
  while (true) {
    pollfd waits[] = {{signal_fd_, POLLIN, 0}, {end_fd_, POLLIN, 0}};
    if (poll(waits, 2, -1) < 0) {
      RUNAHEAD_CHECK(errno == EINTR);
      continue;
    }
    if (waits[1].revents != 0) return;
    signalfd_siginfo info{};
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    if (info.ssi_signo == SIGUSR1 || info.ssi_signo == SIGUSR2) {
      ChangeLogLevel(info.ssi_signo == SIGUSR1 ? LogChange::kMore : LogChange::kLess);
      continue;
    }
    if (second) {
      FlushLog();
      _exit(128 + static_cast<int>(info.ssi_signo));
    }
    second = true;
    Stop();
  }
}

void StopSignal::Stop() {
  MutexLock lock(mu_);
  if (end_at_once_) {
    FlushLog();
    _exit(0);
  }
  stopped_ = true;
  changed_.NotifyAll();
}

void StopSignal::EndAtOnce(bool on) {
  MutexLock lock(mu_);
  end_at_once_ = on;
}

bool StopSignal::Wait(absl::Duration timeout) {
  const auto began = std::chrono::steady_clock::now();
  MutexLock lock(mu_);
  while (!stopped_) {
    const absl::Duration left = timeout - absl::FromChrono(std::chrono::steady_clock::now() - began);
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(mu_, left);
  }
  return true;
}

}  // namespace runahead
