// A function that may wait without a thread: a coroutine that gives its value to the one that awaits it.
#pragma once

#include <atomic>
#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "server/task/executor.h"

namespace runahead {

// What every coroutine of ours has.
class TaskPromise {
 public:
  // Where it is resumed. A coroutine that it awaits begins with the same.
  Executor* executor = nullptr;
  std::coroutine_handle<> awaiting;

  // Its end and the one that awaits it come here: the second one goes on with the latter.
  bool Meet() { return met_.exchange(true, std::memory_order_acq_rel); }

  struct End {
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      const std::coroutine_handle<> next = ended.promise().awaiting;
      return ended.promise().Meet() ? next : std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };
  std::suspend_always initial_suspend() const noexcept { return {}; }
  End final_suspend() const noexcept { return {}; }
  void unhandled_exception() const noexcept { std::terminate(); }  // a bug of ours: errors are absl::Status

 private:
  std::atomic<bool> met_ = false;
};

template <typename T>
class TaskResult {
 public:
  template <typename Value>
  void return_value(Value&& value) {
    value_.emplace(std::forward<Value>(value));
  }
  T Take() { return *std::move(value_); }

 private:
  std::optional<T> value_;
};

template <>
class TaskResult<void> {
 public:
  void return_void() const {}
  void Take() const {}
};

// Begins when it is awaited, by `co_await Function()` or `co_await std::move(task)`, once, and runs where that one
// runs. Never begins where it is destroyed first. What it is given by reference must outlive it. For one owner.
template <typename T = void>
class [[nodiscard]] Task {
 public:
  struct promise_type : TaskPromise, TaskResult<T> {
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
  };

  Task(Task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (coroutine_) coroutine_.destroy();
  }

  struct Awaiter {
    std::coroutine_handle<promise_type> coroutine;

    bool await_ready() const noexcept { return false; }
    // What ends without waiting is gone on with from here, so that a loop over such does not fill the stack. Not to be
    // inlined: compilers keep what is local here in the frame then, which may be gone when resume() returns.
    template <typename Promise>
    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<Promise> awaiting) const {
      const std::coroutine_handle<promise_type> begun = coroutine;
      begun.promise().executor = awaiting.promise().executor;
      begun.promise().awaiting = awaiting;
      begun.resume();
      return !begun.promise().Meet();
    }
    T await_resume() const { return coroutine.promise().Take(); }
  };
  Awaiter operator co_await() && noexcept { return {coroutine_}; }

 private:
  explicit Task(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}

  std::coroutine_handle<promise_type> coroutine_;
};

// `Executor& before = co_await Switch(there)`: the coroutine goes on there.
class Switch {
 public:
  explicit Switch(Executor& there) : there_(there) {}

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
  [[gnu::noinline]] void await_suspend(std::coroutine_handle<Promise> coroutine) {
    Executor& there = there_;
    before_ = std::exchange(coroutine.promise().executor, &there);
    there.Post(coroutine);
  }
  Executor& await_resume() const { return *before_; }

 private:
  Executor& there_;
  Executor* before_ = nullptr;
};

// Runs `task` there, and goes on where it was awaited.
template <typename T>
Task<T> On(Executor& there, Task<T> task) {
  Executor& here = co_await Switch(there);
  T result = co_await std::move(task);
  co_await Switch(here);
  co_return result;
}

}  // namespace runahead
