// Decode attention, first half: one query per sequence over each piece of 256 positions by itself. Work items are
// (piece, kv head). A window begins inside its first piece. What is added to what depends on nothing but the piece and
// the window, so a piece is bitwise the same in any batch, on any number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/elements.h"

namespace runahead {
namespace {

constexpr float kLog2E = 1.44269504088896f;

struct PiecesJob {
  const DecodeKernels& kernels;
  const CpuAttentionArgs& args;
  const int64_t group = args.shape.heads / args.shape.kv_heads;
  const int64_t padded_dim = (args.shape.head_dim + kernels.lanes - 1) / kernels.lanes * kernels.lanes;

  void RunItem(int64_t item) const;
  void LoadQuery(int64_t row, int64_t kv_head, float* q) const;
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

// Of one group over positions [first, piece.end). means: [group][head_dim]; logs: [group].
void PiecesJob::Attend(const CpuPiece& piece, int64_t kv_head, int64_t first, float* means, float* logs) const {
  thread_local AttentionScratch scratch;
  const AttentionShape& shape = args.shape;
  const int64_t head_bytes = shape.head_dim * static_cast<int64_t>(DTypeSize(shape.kv_dtype));
  float* const scores =
      reinterpret_cast<float*>(scratch.Get(sizeof(float) * group * (kDecodeSplit + 2 * padded_dim + 2)));
  float* const q = scores + group * kDecodeSplit;
  LoadQuery(piece.sequence, kv_head, q);
  const std::byte* rows[kDecodeSplit];
  DecodeSplit split;
  split.q = q;
  split.k_rows = rows;
  split.v_offset = shape.kv_heads * head_bytes;
  split.count = static_cast<int>(piece.end - first);
  split.group = static_cast<int>(group);
  split.head_dim = static_cast<int>(shape.head_dim);
  split.padded_dim = static_cast<int>(padded_dim);
  split.soft_cap = shape.soft_cap * kLog2E;
  split.scores = scores;
  split.max = q + group * padded_dim;
  split.sum = split.max + group;
  split.acc = padded_dim == shape.head_dim ? means : split.sum + group;  // heads without padding lie as they should
  const KvSequence& sequence = args.table.layout().sequences[piece.sequence];
  FindKvRows(args, sequence, first, split.count, kv_head * head_bytes, rows);
  (shape.kv_dtype == DType::kF32 ? kernels.split_f32 : kernels.split_bf16)(split);
  for (int64_t h = 0; h < group; ++h) {
    // All scores -inf: log2 gives -inf, and zeros stand beside it.
    const float factor = split.sum[h] == 0.0f ? 0.0f : 1.0f / split.sum[h];
    const float* const acc = split.acc + h * padded_dim;
    for (int64_t d = 0; d < shape.head_dim; ++d) means[h * shape.head_dim + d] = acc[d] * factor;
    logs[h] = split.max[h] + std::log2(split.sum[h]);
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
