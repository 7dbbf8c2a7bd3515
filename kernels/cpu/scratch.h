// Memory of one thread that a kernel needs while it runs.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "kernels/base/status_macros.h"

namespace runahead {

// Grows and is kept for the next call; 64-byte aligned, uninitialised. One per thread and purpose.
class Scratch {
 public:
  std::byte* Get(size_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size_)));
      RUNAHEAD_CHECK(memory_ != nullptr);
    }
    return memory_.get();
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

}  // namespace runahead
