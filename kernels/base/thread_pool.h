// A fixed team of threads for data-parallel loops. One pool per device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/base/turn_order.h"

namespace runahead {

// Takes the calling thread `nice` steps back behind others that want its core, as nice(1) does; 0 to 19.
void StepBack(int nice);

// Loops that this thread calls for are of this kind from now on. At first they are ordinary.
void SetLoopKind(LoopKind kind);

class ThreadPool {
 public:
  // `threads` run a loop: threads - 1 workers, which step back by `nice`, and the caller.
  explicit ThreadPool(int threads, int nice = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Calls body(i) for every i in [0, count), spread over the team by an atomic counter; returns when all are done.
  // Thread-safe: loops of one kind run one after the other; those of the two kinds take turns (TurnOrder) between
  // items, so an item is best some 10 us to 1 ms long. body must not call ParallelFor of the same pool. A pool of one
  // thread is its callers', side by side.
  void ParallelFor(int64_t count, const std::function<void(int64_t)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace runahead
