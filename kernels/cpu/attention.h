// Causal attention on the CPU: blocked flash attention for prompts; for decode steps attention over pieces, and their
// merge.
#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_kv_table.h"

namespace runahead {

struct CpuAttentionArgs {
  ConstTensor q;         // [table.rows(), heads*head_dim], f32 or bf16
  AttentionShape shape;  // head_dim a multiple of 8, at most kMaxAttentionHeadDim; KV in any dtype
  const CpuKvTable& table;
  ConstBufferRef layer;
  MutTensor out;  // must not overlap q or KV
};

inline constexpr int64_t kMaxAttentionHeadDim = 512;

// What the three below have in common: they block until `out` is written; arguments must be valid (checks.h); they are
// thread-safe; `isa` must not exceed what the machine has. KV rows of positions that the table does not have are never
// read.

// Device::Attention (kernels/base/device.h). out: f32 or bf16. A query that sees a NaN or infinity in KV gives no
// meaningful row; rows that do not see it are not affected.
void RunCpuAttention(ThreadPool& pool, CpuIsa isa, const CpuAttentionArgs& args);

// Device::AttendPieces. out: the partials. A piece is bitwise the same whatever pieces are beside it, in whatever pages
// its rows lie, and on any number of threads.
void AttendCpuPieces(ThreadPool& pool, CpuIsa isa, const CpuAttentionArgs& args);

// Device::MergePieces. out: f32 or bf16.
void MergeCpuPieces(ThreadPool& pool, const ConstTensor& partials, const AttentionShape& shape, const CpuKvTable& table,
                    const MutTensor& out);

}  // namespace runahead
