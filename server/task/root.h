// Begins a task that no coroutine awaits.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "server/task/task.h"

namespace runahead {

// A coroutine that goes when it has ended.
class Root {
 public:
  struct promise_type {
    Executor* executor = nullptr;
    Root get_return_object() { return Root(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };

  // It begins on `executor`.
  void Begin(Executor& executor) {
    coroutine_.promise().executor = &executor;
    executor.Post(coroutine_);
  }

 private:
  explicit Root(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}
  std::coroutine_handle<promise_type> coroutine_;
};

}  // namespace runahead
