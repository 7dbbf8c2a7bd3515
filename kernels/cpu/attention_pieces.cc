// Decode attention, first half: one query per sequence over each piece of its positions by itself. Work items are
// pieces, or single kv heads of them where there are few; a piece of a long sequence is several splits, added up in
// order. A window begins inside its first piece. What is added to what depends on nothing but the piece and the window,
// so a piece is bitwise the same in any batch, on any number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/scratch.h"

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

// Positions [begin, end) of a piece that are read together.
struct Split {
  const CpuPiece* piece = nullptr;  // null: none
  int64_t begin = 0;
  int64_t end = 0;
};

struct PiecesJob {
  const DecodeKernels& kernels;
  const CpuAttentionArgs& args;
  const int64_t heads;   // kv heads of an item
  const int64_t beside;  // items that are worked on at the same time
  const int64_t group = args.shape.heads / args.shape.kv_heads;
  const int64_t padded_dim = (args.shape.head_dim + kernels.lanes - 1) / kernels.lanes * kernels.lanes;

  void RunItem(int64_t item) const;
  void LoadQuery(int64_t row, int64_t kv_head, float* q) const;
  void Join(const Seen& more, const Seen& all) const;
  Split FirstSplit(int64_t piece) const;
  Split SplitAfter(const Split& split, int64_t piece) const;
  int FindRows(const Split& split, const std::byte** rows) const;
  KvAhead Ahead(const std::byte* const* rows, int count, int count_now) const;
  void Attend(int64_t piece, int64_t first_head, const Split& first) const;
  void Finish(int64_t kv_head, int64_t row, const Seen& seen) const;
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

// From a position of the piece to the next border of splits.
Split SplitFrom(const CpuPiece& piece, int64_t begin) {
  return {&piece, begin, std::min<int64_t>(piece.end, (begin / kDecodeSplit + 1) * kDecodeSplit)};
}

// The first split of a piece that the query sees something of.
Split PiecesJob::FirstSplit(int64_t piece) const {
  const absl::Span<const CpuPiece> held = args.table.held();
  if (piece >= static_cast<int64_t>(held.size())) return {};
  const CpuPiece& of = held[piece];
  const int64_t begin = std::max<int64_t>(of.begin, FirstSeen(args.shape.window, args.table.positions()[of.sequence]));
  return begin < of.end ? SplitFrom(of, begin) : Split{};
}

// That which is read next, so far as can be told: the item that comes after those beside this one.
Split PiecesJob::SplitAfter(const Split& split, int64_t piece) const {
  if (split.end == split.piece->end) return FirstSplit(piece + beside);
  return SplitFrom(*split.piece, split.end);
}

// How many there are.
int PiecesJob::FindRows(const Split& split, const std::byte** rows) const {
  if (split.piece == nullptr) return 0;
  const int count = static_cast<int>(split.end - split.begin);
  FindKvRows(args, args.table.layout().sequences[split.piece->sequence], split.begin, count, 0, rows);
  return count;
}

// `count` rows in equal steps while all heads of `count_now` are worked on. Heads that are items of their own would
// fetch each other's.
KvAhead PiecesJob::Ahead(const std::byte* const* rows, int count, int count_now) const {
  if (heads < args.shape.kv_heads) return {};
  const int lines = static_cast<int>((args.shape.kv_row_bytes() + 63) / 64);
  const int64_t steps = 2 * heads * count_now;
  return {.rows = rows,
          .end = rows + count,
          .row_lines = lines,
          .step = static_cast<int>((int64_t{count} * lines + steps - 1) / steps)};
}

// The kv heads [first_head, first_head + heads) over a piece, from its first split on.
void PiecesJob::Attend(int64_t piece, int64_t first_head, const Split& first) const {
  thread_local Scratch scratch;
  const AttentionShape& shape = args.shape;
  const CpuPiece& of = args.table.held()[piece];
  const int64_t head_bytes = shape.head_dim * static_cast<int64_t>(DTypeSize(shape.kv_dtype));
  const int64_t values = group * padded_dim;  // of a kv head
  float* const scores = reinterpret_cast<float*>(
      scratch.Get(sizeof(float) * (group * kDecodeSplit + (2 * heads + 1) * values + (heads + 1) * 2 * group)));
  float* const q = scores + group * kDecodeSplit;
  float* const seen = q + heads * values;  // of each head, and one more
  const auto seen_of = [&](int64_t h) {
    float* const at = seen + h * (values + 2 * group);
    return Seen{at + values, at + values + group, at};
  };
  for (int64_t h = 0; h < heads; ++h) LoadQuery(of.sequence, first_head + h, q + h * values);

  const std::byte* rows[2][kDecodeSplit];
  Split now = first;
  int count = FindRows(now, rows[0]);
  for (int i = 0; now.piece == &of; ++i) {
    const Split next = SplitAfter(now, piece);
    const int next_count = FindRows(next, rows[(i + 1) % 2]);
    KvAhead ahead = Ahead(rows[(i + 1) % 2], next_count, count);
    for (int64_t h = 0; h < heads; ++h) {
      const Seen to = seen_of(i == 0 ? h : heads);
      DecodeSplit split;
      split.q = q + h * values;
      split.rows = rows[i % 2];
      split.k_offset = (first_head + h) * head_bytes;
      split.v_offset = (shape.kv_heads + first_head + h) * head_bytes;
      split.cold = heads < shape.kv_heads || (i == 0 && piece < beside);
      split.ahead = &ahead;
      split.count = count;
      split.group = static_cast<int>(group);
      split.head_dim = static_cast<int>(shape.head_dim);
      split.padded_dim = static_cast<int>(padded_dim);
      split.soft_cap = shape.soft_cap * kLog2E;
      split.scores = scores;
      split.max = to.max;
      split.sum = to.sum;
      split.acc = to.acc;
      SplitFor(kernels, shape.kv_dtype)(split);
      if (i > 0) Join(to, seen_of(h));
    }
    now = next;
    count = next_count;
  }
  for (int64_t h = 0; h < heads; ++h) Finish(first_head + h, of.row, seen_of(h));
}

// The means and logs of a kv head.
void PiecesJob::Finish(int64_t kv_head, int64_t row, const Seen& seen) const {
  const AttentionShape& shape = args.shape;
  float* const means = args.out.row<float>(row) + kv_head * group * shape.head_dim;
  float* const logs = args.out.row<float>(row) + shape.heads * shape.head_dim + kv_head * group;
  for (int64_t h = 0; h < group; ++h) {
    // All scores -inf: log2 gives -inf, and zeros stand beside it.
    const float factor = seen.sum[h] == 0.0f ? 0.0f : 1.0f / seen.sum[h];
    const float* const acc = seen.acc + h * padded_dim;
    for (int64_t d = 0; d < shape.head_dim; ++d) means[h * shape.head_dim + d] = acc[d] * factor;
    logs[h] = seen.max[h] + std::log2(seen.sum[h]);
  }
}

void PiecesJob::RunItem(int64_t item) const {
  const AttentionShape& shape = args.shape;
  const int64_t items = shape.kv_heads / heads;  // of a piece
  const int64_t piece = item / items, first_head = item % items * heads;
  const Split first = FirstSplit(piece);
  if (first.piece != nullptr) return Attend(piece, first_head, first);
  float* const logs = args.out.row<float>(args.table.held()[piece].row) + shape.heads * shape.head_dim;
  std::fill(logs + first_head * group, logs + (first_head + heads) * group, -std::numeric_limits<float>::infinity());
}

}  // namespace

void RunPieces(ThreadPool& pool, const DecodeKernels& kernels, const CpuAttentionArgs& args) {
  const auto pieces = static_cast<int64_t>(args.table.held().size());
  const int64_t kv_heads = args.shape.kv_heads;
  // Whole pieces read memory in order; few of them would leave threads without work.
  constexpr int64_t kPiecesPerThread = 4;
  const bool whole = pool.threads() == 1 || pieces >= kPiecesPerThread * pool.threads();
  const PiecesJob job{.kernels = kernels, .args = args, .heads = whole ? kv_heads : 1, .beside = pool.threads()};
  pool.ParallelFor(pieces * kv_heads / job.heads, [&job](int64_t item) { job.RunItem(item); });
}

}  // namespace runahead
