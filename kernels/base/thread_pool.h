// A fixed team of threads for data-parallel loops. One pool per device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace runahead {

// Takes the calling thread `nice` steps back behind others that want its core, as nice(1) does; 0 to 19.
void StepBack(int nice);

class ThreadPool {
 public:
  // `threads` run a loop: threads - 1 workers, which step back by `nice`, and the caller.
  explicit ThreadPool(int threads, int nice = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Calls body(i) for every i in [0, count), spread over the team by an atomic counter; returns when all are done.
  // Thread-safe: loops of several callers run one after the other. body must not call ParallelFor of the same pool.
  void ParallelFor(int64_t count, const std::function<void(int64_t)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace runahead
