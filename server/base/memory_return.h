// Gives memory that was freed back to the system.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace runahead {

// glibc keeps what is freed below what is still in use, and the ends of its heaps, for good: after a burst of requests
// a process would look as large as in its midst. For one thread.
class MemoryReturn {
 public:
  // For the whole process: large blocks are the system's own from now on, and go back to it when they are freed.
  MemoryReturn();

  // Called again and again; looks now and then, and gives back where enough has been freed since it did so last.
  void Poll(absl::Time now);

  // How often it did.
  int64_t returned() const { return returned_; }

 private:
  absl::Time look_at_ = absl::InfinitePast();
  int64_t returned_ = 0;
  size_t least_free_ = 0;      // in malloc's lists, since the last time: what was given back is still counted there
  size_t resident_after_ = 0;  // bytes, after the last time
};

}  // namespace runahead
