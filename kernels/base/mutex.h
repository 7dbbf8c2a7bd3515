// A std::mutex that clang's -Wthread-safety understands. (absl::Mutex from Debian looks like a race to tsan.)
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

#if defined(__clang__)
#define RUNAHEAD_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define RUNAHEAD_THREAD_ANNOTATION(x)
#endif
#define RUNAHEAD_CAPABILITY(x) RUNAHEAD_THREAD_ANNOTATION(capability(x))
#define RUNAHEAD_SCOPED_CAPABILITY RUNAHEAD_THREAD_ANNOTATION(scoped_lockable)
#define RUNAHEAD_GUARDED_BY(x) RUNAHEAD_THREAD_ANNOTATION(guarded_by(x))
#define RUNAHEAD_PT_GUARDED_BY(x) RUNAHEAD_THREAD_ANNOTATION(pt_guarded_by(x))
#define RUNAHEAD_REQUIRES(...) RUNAHEAD_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define RUNAHEAD_EXCLUDES(...) RUNAHEAD_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define RUNAHEAD_ACQUIRE(...) RUNAHEAD_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RUNAHEAD_RELEASE(...) RUNAHEAD_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace runahead {

class RUNAHEAD_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() RUNAHEAD_ACQUIRE() { mu_.lock(); }
  void Unlock() RUNAHEAD_RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// Holds `mu` for a scope.
class RUNAHEAD_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mu) RUNAHEAD_ACQUIRE(mu) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() RUNAHEAD_RELEASE() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Waits always in a loop that tests the guarded condition:
//   MutexLock lock(mu_);
//   while (queue_.empty()) changed_.Wait(mu_);
class CondVar {
 public:
  void Wait(Mutex& mu) RUNAHEAD_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when `timeout` ran out before a notification; infinite durations wait without a limit.
  bool WaitFor(Mutex& mu, absl::Duration timeout) RUNAHEAD_REQUIRES(mu) {
    if (timeout == absl::InfiniteDuration()) {
      Wait(mu);
      return true;
    }
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    // On the monotonic clock: setting the time of day neither ends a wait nor prolongs it. A year stands for more.
    const auto nanoseconds = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
    const auto until = std::chrono::steady_clock::now() + nanoseconds;
    const bool notified = cv_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace runahead
