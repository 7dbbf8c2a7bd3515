// What attention's ops share: where KV rows lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_kernels.h"

namespace runahead {

// Attention of one sequence of a table, whose first query row is first_row, and AttendPieces, with kernels of the
// caller's choice. Arguments are checked.
void RunPrefillAttention(ThreadPool& pool, const PrefillKernels& kernels, const CpuAttentionArgs& args,
                         const KvSequence& sequence, int64_t first_row);
void RunPieces(ThreadPool& pool, const DecodeKernels& kernels, const CpuAttentionArgs& args);

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

}  // namespace runahead
