// Prompt attention of one sequence: pack K and V once per kv head, then work on (head, block of queries) in parallel.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/scratch.h"

namespace runahead {
namespace {

// Packed K and V of so many kv heads as fit are worked on at a time.
constexpr size_t kPackedBytesAtOnce = size_t{64} << 20;

// How many KV rows any query is multiplied with.
int64_t Keys(const KvSequence& sequence) {
  return std::max(sequence.length, sequence.dense_length);
}

struct PrefillAttentionJob {
  const PrefillKernels& kernels;
  const CpuAttentionArgs& args;
  const KvSequence& sequence;
  const int64_t first_row;  // of q and out
  const int64_t keys;
  int64_t first_block = 0;  // windows hide all key blocks before it
  int64_t key_blocks = 0;   // from first_block on
  size_t packed_bytes = 0;  // of one key block
  std::byte* packed = nullptr;
  int64_t first_head = 0;  // the kv heads that are packed now start here
  // Per packed kv head, the first position whose V is not finite.
  std::vector<std::atomic<int64_t>> first_bad;

  PrefillAttentionJob(const PrefillKernels& kernels, const CpuAttentionArgs& args, const KvSequence& sequence,
                      int64_t first_row, int64_t heads)
      : kernels(kernels),
        args(args),
        sequence(sequence),
        first_row(first_row),
        keys(Keys(sequence)),
        first_bad(heads) {}

  std::byte* Packed(int64_t head, int64_t block) const { return packed + (head * key_blocks + block) * packed_bytes; }
  void Pack(int64_t head, int64_t block);
  void Attend(int64_t head, int64_t group_head, int64_t first_query, int queries);
  bool SeesBad(int64_t head, int64_t position) const;
};

void PrefillAttentionJob::Pack(int64_t head, int64_t block) {
  const AttentionShape& shape = args.shape;
  const int64_t head_bytes = shape.head_dim * static_cast<int64_t>(DTypeSize(shape.kv_dtype));
  const int64_t first = (first_block + block) * kernels.key_block;
  const int count = static_cast<int>(std::min<int64_t>(kernels.key_block, keys - first));
  const std::byte* rows[kMaxKeyBlock] = {};
  FindKvRows(args, sequence, first, count, (first_head + head) * head_bytes, rows);
  PackBlock pack;
  pack.k_rows = rows;
  pack.v_offset = shape.kv_heads * head_bytes;
  pack.dtype = shape.kv_dtype;
  pack.head_dim = static_cast<int>(shape.head_dim);
  pack.packed = Packed(head, block);
  const int bad = kernels.pack(pack);
  if (bad == kernels.key_block) return;
  int64_t known = first_bad[head].load(std::memory_order_relaxed);
  while (first + bad < known && !first_bad[head].compare_exchange_weak(known, first + bad)) {
  }
}

// Whether V is anything but numbers where the query at `position` sees it.
bool PrefillAttentionJob::SeesBad(int64_t head, int64_t position) const {
  const AttentionShape& shape = args.shape;
  const int64_t bad = first_bad[head].load(std::memory_order_relaxed);
  if (position < bad) return false;
  const int64_t first = FirstSeen(shape.window, position);
  if (first <= bad) return true;
  // The first is behind the window, but there may be others. This is as slow as it is rare.
  const int64_t head_bytes = shape.head_dim * static_cast<int64_t>(DTypeSize(shape.kv_dtype));
  const int64_t at = (shape.kv_heads + first_head + head) * head_bytes;
  for (int64_t p = first; p <= position; ++p) {
    const std::byte* row;
    FindKvRows(args, sequence, p, 1, at, &row);
    float values[kMaxAttentionHeadDim];
    LoadFloats(row, shape.kv_dtype, 0, shape.head_dim, values);
    if (!std::all_of(values, values + shape.head_dim, [](float value) { return std::isfinite(value); })) return true;
  }
  return false;
}

void PrefillAttentionJob::Attend(int64_t head, int64_t group_head, int64_t first_query, int queries) {
  thread_local Scratch scratch;
  const AttentionShape& shape = args.shape;
  const int64_t column = ((first_head + head) * (shape.heads / shape.kv_heads) + group_head) * shape.head_dim;
  const int64_t row = first_row + first_query;
  AttendBlock block;
  block.q = RowBytes(args.q, row) + column * DTypeSize(args.q.dtype);
  block.q_bf16 = args.q.dtype == DType::kBF16;
  block.q_stride = args.q.stride * static_cast<int64_t>(DTypeSize(args.q.dtype));
  block.out = RowBytes(args.out, row) + column * DTypeSize(args.out.dtype);
  block.out_bf16 = args.out.dtype == DType::kBF16;
  block.out_stride = args.out.stride * static_cast<int64_t>(DTypeSize(args.out.dtype));
  block.position = sequence.length - sequence.queries + first_query;
  block.queries = queries;
  block.dense = sequence.dense_length > 0;
  block.keys = block.dense ? keys : block.position + queries;
  block.head_dim = static_cast<int>(shape.head_dim);
  block.scale = shape.scale;
  const int64_t key_block = FirstSeen(shape.window, block.position) / kernels.key_block;
  block.first_key = key_block * kernels.key_block;
  block.window = shape.window;
  block.soft_cap = shape.soft_cap;
  block.packed = Packed(head, key_block - first_block);
  block.scratch = scratch.Get(kernels.scratch_bytes(block.head_dim));
  kernels.attend(block);
  // V was packed without its NaN and infinities, so that they cannot reach queries that do not see them; the others
  // are not to look as if nothing had been wrong.
  const int64_t bad = first_bad[head].load(std::memory_order_relaxed);
  for (int64_t i = std::max<int64_t>(0, bad - block.position); i < queries; ++i) {
    if (!SeesBad(head, block.position + i)) continue;
    std::byte* to = block.out + i * block.out_stride;
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      if (block.out_bf16) {
        reinterpret_cast<BFloat16*>(to)[d] = ToBFloat16(std::numeric_limits<float>::quiet_NaN());
      } else {
        reinterpret_cast<float*>(to)[d] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
}

// Queries per work item: as many as the kernel takes, fewer where that would leave threads without work.
int64_t ItemQueries(const PrefillKernels& kernels, int64_t queries, int64_t heads, int threads) {
  constexpr int64_t kItemsPerThread = 8;  // the last to finish is then late by an eighth of a thread's share at most
  const int64_t per_item = threads == 1 ? queries : queries * heads / (kItemsPerThread * threads);
  const int64_t steps = std::max<int64_t>(2, (per_item + kernels.query_step - 1) / kernels.query_step);
  return std::min<int64_t>(kernels.max_queries, steps * kernels.query_step);
}

}  // namespace

void RunPrefillAttention(ThreadPool& pool, const PrefillKernels& kernels, const CpuAttentionArgs& args,
                         const KvSequence& sequence, int64_t first_row) {
  thread_local Scratch scratch;
  const AttentionShape& shape = args.shape;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t first_block = FirstSeen(shape.window, sequence.length - sequence.queries) / kernels.key_block;
  const int64_t key_blocks = (Keys(sequence) + kernels.key_block - 1) / kernels.key_block - first_block;
  const size_t packed_bytes = kernels.packed_bytes(static_cast<int>(shape.head_dim));
  const int64_t heads_at_once =
      std::clamp<int64_t>(static_cast<int64_t>(kPackedBytesAtOnce / (key_blocks * packed_bytes)), 1, shape.kv_heads);

  PrefillAttentionJob job(kernels, args, sequence, first_row, heads_at_once);
  job.first_block = first_block;
  job.key_blocks = key_blocks;
  job.packed_bytes = packed_bytes;
  job.packed = scratch.Get(heads_at_once * key_blocks * packed_bytes);
  for (; job.first_head < shape.kv_heads; job.first_head += heads_at_once) {
    const int64_t kv_heads = std::min(heads_at_once, shape.kv_heads - job.first_head);
    for (std::atomic<int64_t>& bad : job.first_bad) bad = std::numeric_limits<int64_t>::max();
    pool.ParallelFor(kv_heads * key_blocks, [&](int64_t i) { job.Pack(i / key_blocks, i % key_blocks); });

    const int64_t heads = kv_heads * group;
    const int64_t step = ItemQueries(kernels, sequence.queries, heads, pool.threads());
    const int64_t blocks = (sequence.queries + step - 1) / step;
    pool.ParallelFor(blocks * heads, [&](int64_t i) {
      const int64_t first = (blocks - 1 - i / heads) * step;  // the last queries see most: longest work first
      const int64_t head = i % heads;
      const int queries = static_cast<int>(std::min(step, sequence.queries - first));
      job.Attend(head / group, head % group, first, queries);
    });
  }
}

}  // namespace runahead
