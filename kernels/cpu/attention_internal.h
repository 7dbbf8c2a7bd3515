// What attention.cc's two paths share: where KV rows lie, and scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_kernels.h"

namespace runahead {

// The prefill path for one sequence, and the decode path for those of `sequences` that have one query.
// Called by RunCpuAttention with checked arguments; tests call them with kernels of their own choice.
void RunPrefillAttention(ThreadPool& pool, const PrefillKernels& kernels, const CpuAttentionArgs& args,
                         const AttentionSequence& sequence);
void RunDecodeAttention(ThreadPool& pool, const DecodeKernels& kernels, const CpuAttentionArgs& args);

// rows[i] = address of KV row first + i of `sequence` plus `offset`, for i < count; the rows exist.
inline void FindKvRows(const AttentionSequence& sequence, int64_t row_bytes, int64_t first, int count, int64_t offset,
                       const std::byte** rows) {
  size_t at = 0;
  while (first >= sequence.kv[at].tokens) first -= sequence.kv[at++].tokens;
  for (int i = 0; i < count; ++at, first = 0) {
    const std::byte* row = sequence.kv[at].rows.data() + first * row_bytes + offset;
    for (int64_t left = sequence.kv[at].tokens - first; left > 0 && i < count; --left, row += row_bytes)
      rows[i++] = row;
  }
}

// Memory that grows and is kept for the next call; 64-byte aligned, uninitialised. One per thread and purpose.
class AttentionScratch {
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
