// What attention's ops share: where KV rows lie, what a query sees, and scratch memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "kernels/base/device.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_kernels.h"

namespace runahead {

// Attention of one sequence of a table, whose first query row is first_row, and AttendPieces, with kernels of the
// caller's choice. Arguments are checked.
void RunPrefillAttention(ThreadPool& pool, const PrefillKernels& kernels, const CpuAttentionArgs& args,
                         const KvSequence& sequence, int64_t first_row);
void RunPieces(ThreadPool& pool, const DecodeKernels& kernels, const CpuAttentionArgs& args);

// The first KV row that the query at `position` sees.
inline int64_t FirstSeen(const AttentionShape& shape, int64_t position) {
  return shape.window == 0 ? 0 : std::max<int64_t>(0, position + 1 - shape.window);
}

// rows[i] = address of the KV row of position first + i of `sequence` plus `offset`, for i < count; the table has them.
inline void FindKvRows(const CpuAttentionArgs& args, const KvSequence& sequence, int64_t first, int count,
                       int64_t offset, const std::byte** rows) {
  const KvLayout& layout = args.table.layout();
  const int64_t row_bytes = args.shape.kv_row_bytes();
  const std::byte* const base = args.layer.data() + offset;
  const int32_t* page = layout.pages.data() + sequence.first_page + (first - sequence.begin) / layout.page_tokens;
  int64_t at = (first - sequence.begin) % layout.page_tokens;
  for (int i = 0; i < count; ++page, at = 0) {
    const std::byte* row = base + (*page * layout.page_tokens + at) * row_bytes;
    for (int64_t left = layout.page_tokens - at; left > 0 && i < count; --left, row += row_bytes) rows[i++] = row;
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
