// Gives memory that was freed back to the system.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "absl/time/time.h"

namespace runahead {

// glibc keeps what is freed below what is still in use, and the ends of its heaps, for good: after a burst of requests
// a process would look as large as in its midst. For one thread.
class MemoryReturn {
 public:
  // What it looks at, and how it gives back. Other threads take and free memory meanwhile.
  struct Heap {
    std::function<int64_t()> used;      // bytes that are given out
    std::function<int64_t()> resident;  // bytes of the process's own memory, whether given out or free
    std::function<void()> trim;         // gives free memory back
  };

  // For the whole process, so before it has threads: large blocks are the system's own from now on, and go back to it
  // when they are freed; threads that start from now on share a few heaps. What takes the same large blocks again and
  // again keeps them (as QuantizedRows does): each time would cost the system's pages anew.
  MemoryReturn();
  // With another heap than the process's, and the process's stays as it is. For tests.
  explicit MemoryReturn(Heap heap);

  // Called again and again; looks now and then, and gives back where enough has been freed since it did so last.
  void Poll(absl::Time now);

  // How often it did.
  int64_t returned() const { return returned_; }

 private:
  int64_t IdleBytes(int64_t used) const { return heap_.resident() - used; }
  void Remember();

  const Heap heap_;
  absl::Time look_at_ = absl::InfinitePast();
  int64_t returned_ = 0;
  // Bytes, over the looks since memory was given back last: the most that was in use, and the least that was not.
  int64_t most_used_ = 0;
  int64_t least_idle_ = 0;
  int64_t best_idle_ = std::numeric_limits<int64_t>::max();  // after any time
  // Other threads may free memory while this one gives back, and least_idle_ then takes that for memory that cannot be
  // given back. So the next looks try again where more idles than best_idle_, until so many tries gave back little.
  int tries_left_ = 0;
};

}  // namespace runahead
