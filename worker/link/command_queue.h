// Work handed to a thread that sleeps in poll: a queue with a descriptor that is readable while something is in it.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/progress_meter.h"

namespace runahead {

// Thread-safe. Any thread posts, one thread takes.
class CommandQueue {
 public:
  // `progress`, where given, shows whether what is posted is taken.
  explicit CommandQueue(std::shared_ptr<ProgressMeter> progress = nullptr)
      : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), progress_(std::move(progress)) {
    RUNAHEAD_CHECK(fd_ >= 0);
  }
  ~CommandQueue() { close(fd_); }
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  // False after Close: the command is lost.
  bool Post(std::function<void()> command) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (closed_) return false;
    commands_.push_back(std::move(command));
    if (progress_ != nullptr) progress_->Wanted();
    if (commands_.size() == 1) eventfd_write(fd_, 1);
    return true;
  }
  std::deque<std::function<void()>> TakeAll() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    eventfd_t count = 0;
    if (!commands_.empty()) eventfd_read(fd_, &count);
    if (progress_ != nullptr) {  // it is judged by what it leaves lying alone
      progress_->Awake();
      progress_->Resting();
    }
    return std::exchange(commands_, {});
  }
  void Close() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    closed_ = true;
  }
  int fd() const { return fd_; }

 private:
  const int fd_;
  const std::shared_ptr<ProgressMeter> progress_;
  Mutex mu_;
  bool closed_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> commands_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
