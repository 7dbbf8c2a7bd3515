// Causal attention on the CPU: blocked flash attention for prompts, split attention for decode steps.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_isa.h"

namespace runahead {

struct CpuAttentionArgs {
  const void* q = nullptr;  // [rows, heads*head_dim]; rows are `q_stride` elements apart
  DType q_dtype = DType::kF32;
  int64_t q_stride = 0;
  AttentionShape shape;  // head_dim a multiple of 8, at most kMaxAttentionHeadDim; KV in f32 or bf16
  absl::Span<const AttentionSequence> sequences;
  void* out = nullptr;  // [rows, heads*head_dim]; rows are `out_stride` elements apart; must not overlap q or KV
  DType out_dtype = DType::kF32;
  int64_t out_stride = 0;
};

inline constexpr int64_t kMaxAttentionHeadDim = 512;

// Device::Attention (kernels/base/device.h) for f32 and bf16 q, KV and out in any mixture. Blocks until `out` is
// written; arguments must be valid (checked). Thread-safe. `isa` must not exceed what the machine has.
// A sequence with one query gets bitwise the same row whatever sequences are beside it, however its KV is cut into
// spans, and on any number of threads. KV rows at or after `length` (or `dense_length`) are never read.
// A query that sees a NaN or infinity in KV gives no meaningful row; rows that do not see it are not affected.
void RunCpuAttention(ThreadPool& pool, CpuIsa isa, const CpuAttentionArgs& args);

}  // namespace runahead
