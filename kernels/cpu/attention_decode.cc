// Decode attention: one query per sequence, a ragged batch. Work items are (sequence, split of 256 positions, kv head);
// the item that finishes a head's last split merges all of them in order. What is added to what depends on nothing but
// the sequence's own length, so a row is bitwise the same in any batch, on any number of threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/attention_internal.h"

namespace runahead {
namespace {

constexpr float kLog2E = 1.44269504088896f;

struct DecodeQuery {
  const AttentionSequence* sequence = nullptr;
  int64_t splits = 0;
  int64_t first_item = 0;  // items of a sequence are numbered split * kv_heads + kv_head
  int64_t first_head = 0;  // index of its kv head 0 among the kv heads of all sequences
};

struct DecodeJob {
  const DecodeKernels& kernels;
  const CpuAttentionArgs& args;
  int64_t group = 0;
  int64_t padded_dim = 0;
  int64_t partial_floats = 0;  // an item's result: max [group], sum [group], acc [group][padded_dim]
  float* partials = nullptr;   // [items][partial_floats]
  std::vector<DecodeQuery> sequences;
  std::unique_ptr<std::atomic<int64_t>[]> splits_left;  // per (sequence, kv head)

  float* Partial(int64_t item) const { return partials + item * partial_floats; }
  void RunItem(int64_t item);
  void LoadQuery(const DecodeQuery& of, int64_t kv_head, float* q) const;
  void Merge(const DecodeQuery& of, int64_t kv_head) const;
};

// q of one group times scale * log2(e), zero in the padding.
void DecodeJob::LoadQuery(const DecodeQuery& of, int64_t kv_head, float* q) const {
  const AttentionShape& shape = args.shape;
  const float factor = shape.scale * kLog2E;
  const int64_t at = of.sequence->query_row * args.q_stride + kv_head * group * shape.head_dim;
  for (int64_t h = 0; h < group; ++h) {
    float* to = q + h * padded_dim;
    const int64_t from = at + h * shape.head_dim;
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      to[d] = factor * (args.q_dtype == DType::kF32 ? static_cast<const float*>(args.q)[from + d]
                                                    : ToFloat(static_cast<const BFloat16*>(args.q)[from + d]));
    }
    std::fill(to + shape.head_dim, to + padded_dim, 0.0f);
  }
}

void DecodeJob::RunItem(int64_t item) {
  thread_local AttentionScratch scratch;
  const AttentionShape& shape = args.shape;
  const DecodeQuery& of =
      *(std::upper_bound(sequences.begin(), sequences.end(), item,
                         [](int64_t i, const DecodeQuery& sequence) { return i < sequence.first_item; }) -
        1);
  const int64_t index = (item - of.first_item) / shape.kv_heads, kv_head = (item - of.first_item) % shape.kv_heads;
  const int64_t head_bytes = shape.head_dim * static_cast<int64_t>(DTypeSize(shape.kv_dtype));

  float* scores = reinterpret_cast<float*>(scratch.Get(sizeof(float) * group * (kDecodeSplit + padded_dim)));
  float* q = scores + group * kDecodeSplit;
  LoadQuery(of, kv_head, q);
  const std::byte* rows[kDecodeSplit];
  DecodeSplit split;
  split.q = q;
  split.k_rows = rows;
  split.v_offset = shape.kv_heads * head_bytes;
  split.count = static_cast<int>(std::min<int64_t>(kDecodeSplit, of.sequence->length - index * kDecodeSplit));
  split.group = static_cast<int>(group);
  split.head_dim = static_cast<int>(shape.head_dim);
  split.padded_dim = static_cast<int>(padded_dim);
  split.scores = scores;
  split.max = Partial(item);
  split.sum = split.max + group;
  split.acc = split.sum + group;
  FindKvRows(*of.sequence, shape.kv_row_bytes(), index * kDecodeSplit, split.count, kv_head * head_bytes, rows);
  (shape.kv_dtype == DType::kF32 ? kernels.split_f32 : kernels.split_bf16)(split);

  // The last one sees what the others wrote: each release is joined by the acquire of those after it.
  if (splits_left[of.first_head + kv_head].fetch_sub(1, std::memory_order_acq_rel) == 1) Merge(of, kv_head);
}

void DecodeJob::Merge(const DecodeQuery& of, int64_t kv_head) const {
  thread_local AttentionScratch scratch;
  const AttentionShape& shape = args.shape;
  float* row = reinterpret_cast<float*>(scratch.Get(sizeof(float) * padded_dim));
  for (int64_t h = 0; h < group; ++h) {
    const auto part = [&](int64_t split) { return Partial(of.first_item + split * shape.kv_heads + kv_head); };
    float max = part(0)[h];
    for (int64_t s = 1; s < of.splits; ++s) max = std::max(max, part(s)[h]);
    std::fill(row, row + padded_dim, 0.0f);
    float sum = 0.0f;
    for (int64_t s = 0; s < of.splits; ++s) {
      const float weight = std::exp2(part(s)[h] - max);
      const float* acc = part(s) + 2 * group + h * padded_dim;
      sum += weight * part(s)[group + h];
      for (int64_t d = 0; d < shape.head_dim; ++d) row[d] += weight * acc[d];
    }
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int64_t to = of.sequence->query_row * args.out_stride + (kv_head * group + h) * shape.head_dim;
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      const float value = row[d] * factor;
      if (args.out_dtype == DType::kF32) {
        static_cast<float*>(args.out)[to + d] = value;
      } else {
        static_cast<BFloat16*>(args.out)[to + d] = ToBFloat16(value);
      }
    }
  }
}

}  // namespace

void RunDecodeAttention(ThreadPool& pool, const DecodeKernels& kernels, const CpuAttentionArgs& args) {
  thread_local AttentionScratch scratch;
  const AttentionShape& shape = args.shape;
  DecodeJob job{.kernels = kernels, .args = args, .sequences = {}, .splits_left = nullptr};
  job.group = shape.heads / shape.kv_heads;
  job.padded_dim = (shape.head_dim + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
  job.partial_floats = job.group * (2 + job.padded_dim);
  int64_t items = 0;
  for (const AttentionSequence& sequence : args.sequences) {
    if (sequence.queries != 1) continue;
    const int64_t splits = (sequence.length + kDecodeSplit - 1) / kDecodeSplit;
    const int64_t head = static_cast<int64_t>(job.sequences.size()) * shape.kv_heads;
    job.sequences.push_back({&sequence, splits, items, head});
    items += splits * shape.kv_heads;
  }
  if (items == 0) return;
  job.partials = reinterpret_cast<float*>(scratch.Get(sizeof(float) * items * job.partial_floats));
  job.splits_left = std::make_unique<std::atomic<int64_t>[]>(job.sequences.size() * shape.kv_heads);
  for (const DecodeQuery& of : job.sequences) {
    for (int64_t head = 0; head < shape.kv_heads; ++head) job.splits_left[of.first_head + head] = of.splits;
  }
  pool.ParallelFor(items, [&](int64_t item) { job.RunItem(item); });
}

}  // namespace runahead
