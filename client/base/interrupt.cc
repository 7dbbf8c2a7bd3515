#include "client/base/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "client/base/command.h"
#include "kernels/base/status_macros.h"

namespace runahead {

Interrupt::Interrupt() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  RUNAHEAD_CHECK(pthread_sigmask(SIG_BLOCK, &signals, &before_) == 0);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC);
  end_fd_ = eventfd(0, EFD_CLOEXEC);
  RUNAHEAD_CHECK(signal_fd_ >= 0 && end_fd_ >= 0);
  thread_ = std::thread([this] { Run(); });
}

Interrupt::~Interrupt() {
  const uint64_t one = 1;
  RUNAHEAD_CHECK(write(end_fd_, &one, sizeof one) == sizeof one);
  thread_.join();
  close(signal_fd_);
  close(end_fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupt::Run() {
  while (true) {
    pollfd waits[] = {{signal_fd_, POLLIN, 0}, {end_fd_, POLLIN, 0}};
    if (poll(waits, 2, -1) < 0) continue;  // EINTR
    if (waits[1].revents != 0) return;
    signalfd_siginfo info{};
    if (read(signal_fd_, &info, sizeof info) == sizeof info) OnSignal(static_cast<int>(info.ssi_signo));
  }
}

void Interrupt::OnSignal(int signal) {
  MutexLock lock(mu_);
  if (cancel_ == nullptr || signal_ != 0) {
    // The shell's cursor stands behind ^C, or behind a prompt.
    if (isatty(STDERR_FILENO)) [[maybe_unused]]
      const ssize_t wrote = write(STDERR_FILENO, "\n", 1);
    _exit(kSignalled + signal);
  }
  signal_ = signal;
  cancel_();
}

Interrupt::Scope::Scope(Interrupt& interrupt, std::function<void()> cancel) : interrupt_(interrupt) {
  MutexLock lock(interrupt_.mu_);
  RUNAHEAD_CHECK(interrupt_.cancel_ == nullptr);
  interrupt_.cancel_ = std::move(cancel);
  interrupt_.signal_ = 0;
}

Interrupt::Scope::~Scope() {
  MutexLock lock(interrupt_.mu_);
  interrupt_.cancel_ = nullptr;
}

int Interrupt::Scope::signal() const {
  MutexLock lock(interrupt_.mu_);
  return interrupt_.signal_;
}

}  // namespace runahead
