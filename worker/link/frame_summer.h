// Where the checksums of frames in host memory are computed: off the threads that move bytes, but for small ones.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/base/buffer.h"
#include "kernels/base/task_thread.h"
#include "worker/link/edge.h"

namespace runahead {

// Thread-safe; two threads of its own, so that what is sent and what has come wait for their own kind only. Destroying
// it computes what was asked for before, not on a callback.
class FrameSummer {
 public:
  // Gets the sum: at once, or on a thread of the summer's. Nothing here holds the bytes when it runs.
  using Done = std::function<void(uint64_t sum)>;

  void SumSent(const FrameId& id, ConstBufferRef bytes, Done done) { Sum(sent_, id, std::move(bytes), done); }
  void SumCome(const FrameId& id, ConstBufferRef bytes, Done done) { Sum(come_, id, std::move(bytes), done); }

 private:
  static void Sum(TaskThread& thread, const FrameId& id, ConstBufferRef bytes, const Done& done);

  TaskThread sent_, come_;
};

}  // namespace runahead
