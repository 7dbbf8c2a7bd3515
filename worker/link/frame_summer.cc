#include "worker/link/frame_summer.h"

#include <utility>

namespace runahead {
namespace {

// A sum of so many bytes takes less than waking a thread does.
constexpr size_t kAtOnce = 16384;

uint64_t SumOnce(const FrameId& id, ConstBufferRef bytes) {
  return SumOnHost(id, bytes.size == 0 ? nullptr : bytes.data(), bytes.size);
}

}  // namespace

void FrameSummer::Sum(TaskThread& thread, const FrameId& id, ConstBufferRef bytes, const Done& done) {
  if (bytes.size <= kAtOnce) return done(SumOnce(id, std::move(bytes)));
  thread.Post([id, bytes = std::move(bytes), done]() mutable { done(SumOnce(id, std::move(bytes))); });
}

}  // namespace runahead
