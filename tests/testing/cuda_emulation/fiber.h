// A stack beside the thread's own, which work can leave in the middle and come back to.
#pragma once

#include <cstddef>

namespace runahead::cuda_emulation {

// Used and destroyed by the thread that made it. tsan is told nothing of fibers: to it, all work is that of the thread,
// which is what we want of the threads of a block, and its own fibers take a millisecond each to make. (It counts the
// functions entered and left; that adds up, though the stacks in its reports are mixed up.)
class Fiber {
 public:
  Fiber();
  ~Fiber();  // it is idle
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs work(argument) on the fiber's stack until it returns or suspends. True when it has returned.
  bool Start(void (*work)(void*), void* argument);
  // Goes on behind Suspend. True when the work has returned.
  bool Resume();
  // Called by the work: goes back behind Start or Resume.
  void Suspend();

 private:
  static void Main(Fiber* self);

  void (*work_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool idle_ = true;
  std::byte* stack_ = nullptr;
  void* inside_ = nullptr;   // where the fiber goes on
  void* outside_ = nullptr;  // where the thread goes on
  // For asan: the thread's stack, and what it keeps of stacks that are left.
  const void* outside_stack_ = nullptr;
  size_t outside_stack_size_ = 0;
  void* inside_fake_stack_ = nullptr;
};

}  // namespace runahead::cuda_emulation
