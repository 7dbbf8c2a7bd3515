// Runs the blocks of a kernel, one after the other, on the calling thread.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/testing/cuda_emulation/fiber.h"

namespace runahead::cuda_emulation {

// The threads of one block after the other, each a fiber. A thread runs until it waits (barrier, shuffle) or ends; when
// all wait, those that may go on do. The order in which threads run changes from block to block, from wait to wait and
// from launch to launch (`launch`), so that what needs a barrier and has none shows.
class BlockRunner {
 public:
  BlockRunner(dim3 grid, dim3 block, uint64_t launch, const std::function<void()>& thread);
  ~BlockRunner();
  void Run(uint3 index);

  // What the threads of the block that runs on this thread call.
  static BlockRunner& Current(const char* function);
  void SyncThreads();
  WarpValues Meet(WarpOp op, uint32_t mask, uint64_t value);

 private:
  enum class State { kReady, kAtBarrier, kInWarp, kDone };
  struct Thread {
    Fiber* fiber = nullptr;
    State state = State::kReady;
    WarpOp op = WarpOp::kSync;
    uint32_t mask = 0;
    uint32_t participants = 0;  // of the last meeting in its warp
  };

  static void RunFresh(void* self);
  int InOrder(int position) const { return descending_ ? count_ - 1 - position : position; }
  void Enter(int thread);
  void Wait(State state);
  void Release();
  bool ReleaseBarrier();
  bool ReleaseWarp(int first);
  [[noreturn]] void DieStuck() const;

  const int count_;
  const uint64_t launch_;
  const std::function<void()>& thread_;
  std::vector<uint3> indices_;  // threadIdx of each thread
  std::vector<Thread> threads_;
  std::vector<uint64_t> brought_;  // by each thread, to the meeting it waits for
  std::vector<uint64_t> met_;      // of the last meeting
  uint64_t turn_ = 0;
  bool descending_ = false;
  int fresh_ = 0;  // so many have been started
  int running_ = 0;
  int current_ = 0;
  Fiber* fiber_ = nullptr;  // of the current thread
};

// Runs all blocks; the sizes are ones that CUDA takes. `thread` calls `kernel` with its arguments.
void RunGrid(dim3 grid, dim3 block, const void* kernel, const std::function<void()>& thread);

}  // namespace runahead::cuda_emulation
