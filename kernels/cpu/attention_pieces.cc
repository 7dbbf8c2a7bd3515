// Decode attention, first half: one query per sequence over each piece of its positions by itself. Work items are
// (piece, kv head); a piece of a long sequence is several splits, added up in order. A window begins inside its first
// piece. What is added to what depends on nothing but the piece and the window, so a piece is bitwise the same in any
// batch, on any number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/elements.h"

namespace runahead {
namespace {

constexpr float kLog2E = 1.44269504088896f;
static_assert(kSmallestPiece % kDecodeSplit == 0);

// What the heads of a group have seen so far, as DecodeSplit gives it.
struct Seen {
  float* max = nullptr;  // [group]
  float* sum = nullptr;  // [group]
  float* acc = nullptr;  // [group][padded_dim]
};

struct PiecesJob {
  const DecodeKernels& kernels;
  const CpuAttentionArgs& args;
  const int64_t group = args.shape.heads / args.shape.kv_heads;
  const int64_t padded_dim = (args.shape.head_dim + kernels.lanes - 1) / kernels.lanes * kernels.lanes;

  void RunItem(int64_t item) const;
  void LoadQuery(int64_t row, int64_t kv_head, float* q) const;
  void Join(const Seen& more, const Seen& all) const;
  void Attend(const CpuPiece& piece, int64_t kv_head, int64_t first, float* means, float* logs) const;
};

// q of one group times scale * log2(e), zero in the padding.
void PiecesJob::LoadQuery(int64_t row, int64_t kv_head, float* q) const {
  const AttentionShape& shape = args.shape;
  const float factor = shape.scale * kLog2E;
  for (int64_t h = 0; h < group; ++h, q += padded_dim) {
    LoadFloats(RowBytes(args.q, row), args.q.dtype, (kv_head * group + h) * shape.head_dim, shape.head_dim, q);
    for (int64_t d = 0; d < shape.head_dim; ++d) q[d] *= factor;
    std::fill(q + shape.head_dim, q + padded_dim, 0.0f);
  }
}

// `more` joins `all`: each is what softmax over its own positions needs.
void PiecesJob::Join(const Seen& more, const Seen& all) const {
  for (int64_t h = 0; h < group; ++h) {
    const float max = std::max(all.max[h], more.max[h]);
    const float old_weight = std::exp2(all.max[h] - max), new_weight = std::exp2(more.max[h] - max);
    all.max[h] = max;
    all.sum[h] = all.sum[h] * old_weight + more.sum[h] * new_weight;
    float* const to = all.acc + h * padded_dim;
    const float* const from = more.acc + h * padded_dim;
    for (int64_t d = 0; d < padded_dim; ++d) to[d] = to[d] * old_weight + from[d] * new_weight;
  }
}

auto SplitFor(const DecodeKernels& kernels, DType kv_dtype) {
  return kv_dtype == DType::kF32    ? kernels.split_f32
         : kv_dtype == DType::kBF16 ? kernels.split_bf16
                                    : kernels.split_f16;
}

// Of one group over positions [first, piece.end). means: [group][head_dim]; logs: [group].
void PiecesJob::Attend(const CpuPiece& piece, int64_t kv_head, int64_t first, float* means, float* logs) const {
  thread_local AttentionScratch scratch;
  const AttentionShape& shape = args.shape;
  const int64_t head_bytes = shape.head_dim * static_cast<int64_t>(DTypeSize(shape.kv_dtype));
  float* const scores =
      reinterpret_cast<float*>(scratch.Get(sizeof(float) * group * (kDecodeSplit + 3 * padded_dim + 4)));
  float* const q = scores + group * kDecodeSplit;
  LoadQuery(piece.sequence, kv_head, q);
  float* const sums = q + group * padded_dim;
  Seen all{sums, sums + group, sums + 4 * group},
      more{sums + 2 * group, sums + 3 * group, all.acc + group * padded_dim};
  if (padded_dim == shape.head_dim) all.acc = means;  // heads without padding lie as they should
  const std::byte* rows[kDecodeSplit];
  DecodeSplit split;
  split.q = q;
  split.k_rows = rows;
  split.v_offset = shape.kv_heads * head_bytes;
  split.group = static_cast<int>(group);
  split.head_dim = static_cast<int>(shape.head_dim);
  split.padded_dim = static_cast<int>(padded_dim);
  split.soft_cap = shape.soft_cap * kLog2E;
  split.scores = scores;
  const KvSequence& sequence = args.table.layout().sequences[piece.sequence];
  for (int64_t begin = first, end = 0; begin < piece.end; begin = end) {
    end = std::min<int64_t>(piece.end, (begin / kDecodeSplit + 1) * kDecodeSplit);
    const Seen& of = begin == first ? all : more;
    split.count = static_cast<int>(end - begin);
    split.max = of.max;
    split.sum = of.sum;
    split.acc = of.acc;
    FindKvRows(args, sequence, begin, split.count, kv_head * head_bytes, rows);
    SplitFor(kernels, shape.kv_dtype)(split);
    if (begin != first) Join(more, all);
  }
  for (int64_t h = 0; h < group; ++h) {
    // All scores -inf: log2 gives -inf, and zeros stand beside it.
    const float factor = all.sum[h] == 0.0f ? 0.0f : 1.0f / all.sum[h];
    const float* const acc = all.acc + h * padded_dim;
    for (int64_t d = 0; d < shape.head_dim; ++d) means[h * shape.head_dim + d] = acc[d] * factor;
    logs[h] = all.max[h] + std::log2(all.sum[h]);
  }
}

void PiecesJob::RunItem(int64_t item) const {
  const AttentionShape& shape = args.shape;
  const CpuPiece& piece = args.table.held()[item / shape.kv_heads];
  const int64_t kv_head = item % shape.kv_heads;
  float* const means = args.out.row<float>(piece.row) + kv_head * group * shape.head_dim;
  float* const logs = args.out.row<float>(piece.row) + shape.heads * shape.head_dim + kv_head * group;
  const int64_t query = args.table.positions()[piece.sequence];
  const int64_t first = std::max<int64_t>(piece.begin, FirstSeen(shape, query));
  if (first < piece.end) {
    Attend(piece, kv_head, first, means, logs);
  } else {
    std::fill(logs, logs + group, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void RunPieces(ThreadPool& pool, const DecodeKernels& kernels, const CpuAttentionArgs& args) {
  const PiecesJob job{.kernels = kernels, .args = args};
  const auto items = static_cast<int64_t>(args.table.held().size()) * args.shape.kv_heads;
  pool.ParallelFor(items, [&job](int64_t item) { job.RunItem(item); });
}

}  // namespace runahead
