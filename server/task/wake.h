// Where one coroutine waits for news.
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>

#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/task/executor.h"

namespace runahead {

// As a condition variable for one that waits, but for this: what was notified while nobody waited ends the next wait at
// once. So the one that waits looks at its condition, under its lock, then waits without it, in a loop:
//   while (!Ready()) co_await wake_.Wait();
// What another thread has made ready it may see, and end, at once: whoever makes it ready calls Notify under that lock,
// or else is known to have returned before the Wake goes (CancelToken::Subscription, Clock::Unset).
class Wake {
 public:
  Wake() = default;
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  // Any thread, under any lock. The coroutine goes on, on its executor.
  void Notify() {
    const uintptr_t before = state_.exchange(kNotified, std::memory_order_acq_rel);
    if (before <= kNotified) return;
    const Sleeper sleeper = *reinterpret_cast<const Sleeper*>(before);  // which is gone once it goes on
    sleeper.executor->Post(sleeper.coroutine);
  }

 private:
  struct Sleeper {
    std::coroutine_handle<> coroutine;
    Executor* executor = nullptr;
  };
  static constexpr uintptr_t kIdle = 0, kNotified = 1;  // else the Sleeper's address

  class Waiting {
   public:
    explicit Waiting(Wake& wake) : wake_(wake) {}
    bool await_ready() const noexcept { return false; }
    // As in Task, not to be inlined.
    template <typename Promise>
    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      sleeper_ = {coroutine, coroutine.promise().executor};
      uintptr_t expected = kIdle;
      return wake_.state_.compare_exchange_strong(expected, reinterpret_cast<uintptr_t>(&sleeper_),
                                                  std::memory_order_acq_rel);
    }
    void await_resume() { wake_.state_.exchange(kIdle, std::memory_order_acq_rel); }

   private:
    Wake& wake_;
    Sleeper sleeper_;
  };

  class TimedWaiting final : private Alarm {
   public:
    TimedWaiting(Wake& wake, Clock& clock, absl::Time until)
        : wake_(wake), waiting_(wake), clock_(clock), until_(until) {}
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      clock_.Set(*this, until_);
      return waiting_.await_suspend(coroutine);
    }
    void await_resume() {
      clock_.Unset(*this);
      waiting_.await_resume();
    }

   private:
    void Ring() override { wake_.Notify(); }

    Wake& wake_;
    Waiting waiting_;
    Clock& clock_;
    const absl::Time until_;
  };

  std::atomic<uintptr_t> state_ = kIdle;

 public:
  // To be awaited: until notified.
  Waiting Wait() { return Waiting(*this); }
  // The same, or until `until`, at the latest.
  TimedWaiting Until(Clock& clock, absl::Time until) { return TimedWaiting(*this, clock, until); }
};

}  // namespace runahead
