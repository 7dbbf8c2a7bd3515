// Decode attention, first half: each query over each piece of its positions by itself. Work items are pieces of a
// sequence, or single kv heads of them where there are few; a piece of a long sequence is several splits, added up in
// order. A window begins inside its first piece. What is added to what depends on nothing but the query's piece and the
// window, so it is bitwise the same in any batch, beside any other queries of the sequence, on any number of threads.
// The queries of a sequence take a split one after the other while it is in the cache, those that see as much of it
// together: a kernel knows them as more heads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/scratch.h"

namespace runahead {
namespace {

constexpr float kLog2E = 1.44269504088896f;
static_assert(kSmallestPiece % kDecodeSplit == 0);

// Heads, of all queries, that a kernel takes at a time: their scores fit the first cache beside what they meet.
constexpr int64_t kMostHeads = 16;

// What heads have seen so far, as DecodeSplit gives it.
struct Seen {
  float* max = nullptr;  // [heads]
  float* sum = nullptr;  // [heads]
  float* acc = nullptr;  // [heads][padded_dim]
};

// A query row of the item's sequence: what it sees, and how that is cut.
struct Query {
  int64_t first_seen = 0;
  int64_t length = 0;        // positions up to its own
  int64_t piece_tokens = 0;  // 1 << piece_bits
  int piece_bits = 0;
  int64_t first_piece = 0;  // of the partials
};

// Queries that follow each other and see [begin, end) of a split: as the first of their pieces, or behind others.
struct Run {
  int64_t first = 0, count = 0;
  int64_t begin = 0, end = 0;
  bool is_first = false;
};

// Positions [begin, end) of a piece that are read together.
struct Split {
  const CpuPiece* piece = nullptr;  // null: none
  int64_t begin = 0;
  int64_t end = 0;
};

// What a thread works on: kv heads of a piece, for all queries of its sequence.
struct Item {
  int64_t piece = 0;  // of CpuKvTable::held
  int64_t first_head = 0;
  absl::Span<const Query> queries;
  // Its memory.
  float* scores = nullptr;      // of the heads of a run
  float* q = nullptr;           // [kv heads][queries][group][padded_dim]
  std::vector<Seen> seen = {};  // by kv head: [queries][group]
  Seen aside = {};              // what a run sees before that is joined
};

struct PiecesJob {
  const DecodeKernels& kernels;
  const CpuAttentionArgs& args;
  const int64_t heads;   // kv heads of an item
  const int64_t beside;  // items that are worked on at the same time
  const int64_t group = args.shape.heads / args.shape.kv_heads;
  const int64_t padded_dim = (args.shape.head_dim + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
  const int64_t most_queries = std::max<int64_t>(1, kMostHeads / group);  // of a run

  void RunItem(int64_t number) const;
  void FillQueries(const CpuPiece& piece, std::vector<Query>& queries) const;
  void TakeMemory(Item& item) const;
  void LoadQuery(int64_t row, int64_t kv_head, float* q) const;
  void Join(const Seen& more, const Seen& all, int64_t count) const;
  Split FirstSplit(int64_t piece) const;
  Split SplitAfter(const Split& split, int64_t piece) const;
  int FindRows(const Split& split, const std::byte** rows) const;
  Run RunFrom(absl::Span<const Query> queries, int64_t first, const Split& split) const;
  KvAhead Ahead(const std::byte* const* rows, int count, int64_t count_now) const;
  void HideUnseen(const CpuPiece& piece, const Query& query, int64_t first_head) const;
  void Attend(Item& item, const Split& first) const;
  void AttendHead(const Item& item, int64_t head, const Split& split, const std::byte* const* rows, bool cold,
                  KvAhead& ahead) const;
  void Finish(int64_t kv_head, int64_t row, const Seen& seen) const;
  Seen Behind(const Seen& seen, int64_t queries) const {
    const int64_t at = queries * group;
    return {seen.max + at, seen.sum + at, seen.acc + at * padded_dim};
  }
};

void PiecesJob::FillQueries(const CpuPiece& piece, std::vector<Query>& queries) const {
  const KvSequence& sequence = args.table.layout().sequences[piece.sequence];
  const int64_t first_row = args.table.first_row(piece.sequence);
  queries.clear();
  for (int64_t i = 0; i < sequence.queries; ++i) {
    const int64_t length = sequence.length - sequence.queries + 1 + i;
    queries.push_back({.first_seen = FirstSeen(args.shape.window, length - 1),
                       .length = length,
                       .piece_tokens = PieceTokens(length),
                       .piece_bits = std::countr_zero(static_cast<uint64_t>(PieceTokens(length))),
                       .first_piece = args.table.first_piece(first_row + i)});
  }
}

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
void PiecesJob::Join(const Seen& more, const Seen& all, int64_t count) const {
  for (int64_t h = 0; h < count; ++h) {
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

// The first split of a piece that any query sees something of: the first one of a sequence sees back the farthest.
Split PiecesJob::FirstSplit(int64_t piece) const {
  const absl::Span<const CpuPiece> held = args.table.held();
  if (piece >= static_cast<int64_t>(held.size())) return {};
  const CpuPiece& of = held[piece];
  const int32_t position = args.table.positions()[args.table.first_row(of.sequence)];
  const int64_t begin = std::max<int64_t>(of.begin, FirstSeen(args.shape.window, position));
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

// The queries from `first` on that see the same of a split as that one: nothing (begin >= end), or as many as a kernel
// takes.
Run PiecesJob::RunFrom(absl::Span<const Query> queries, int64_t first, const Split& split) const {
  const auto run_of = [&](int64_t i) {
    const Query& query = queries[i];
    const int64_t begin = std::max(split.begin, query.first_seen), end = std::min(split.end, query.length);
    const int64_t piece = begin >> query.piece_bits << query.piece_bits;
    return Run{i, 1, begin, end, begin == std::max(piece, query.first_seen)};
  };
  Run run = run_of(first);
  for (int64_t i = first + 1; i < static_cast<int64_t>(queries.size()) && run.count < most_queries; ++i) {
    const Run next = run_of(i);
    if (next.begin != run.begin || next.end != run.end || next.is_first != run.is_first) break;
    ++run.count;
  }
  return run;
}

// `count` rows in equal steps while all heads of an item read `count_now` positions, those of all runs together. Heads
// that are items of their own would fetch each other's.
KvAhead PiecesJob::Ahead(const std::byte* const* rows, int count, int64_t count_now) const {
  if (heads < args.shape.kv_heads) return {};
  const int lines = static_cast<int>((args.shape.kv_row_bytes() + 63) / 64);
  const int64_t steps = 2 * heads * count_now;
  return {.rows = rows,
          .end = rows + count,
          .row_lines = lines,
          .step = static_cast<int>((int64_t{count} * lines + steps - 1) / steps)};
}

void PiecesJob::TakeMemory(Item& item) const {
  thread_local Scratch scratch;
  const int64_t count = static_cast<int64_t>(item.queries.size()), run = std::min(count, most_queries);
  const int64_t seen = group * (padded_dim + 2);  // of a query
  float* at = reinterpret_cast<float*>(
      scratch.Get(sizeof(float) * (run * (group * kDecodeSplit + seen) + heads * count * (group * padded_dim + seen))));
  const auto take = [&](int64_t floats) { return std::exchange(at, at + floats); };
  const auto take_seen = [&](int64_t queries) {
    return Seen{take(queries * group), take(queries * group), take(queries * group * padded_dim)};
  };
  item.scores = take(run * group * kDecodeSplit);
  item.q = take(heads * count * group * padded_dim);
  item.seen.clear();
  for (int64_t h = 0; h < heads; ++h) item.seen.push_back(take_seen(count));
  item.aside = take_seen(run);
}

// The item's piece from its first split on.
void PiecesJob::Attend(Item& item, const Split& first) const {
  TakeMemory(item);
  const CpuPiece& of = args.table.held()[item.piece];
  const int64_t count = static_cast<int64_t>(item.queries.size()), first_row = args.table.first_row(of.sequence);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < count; ++i) {
      LoadQuery(first_row + i, item.first_head + h, item.q + (h * count + i) * group * padded_dim);
    }
  }
  const std::byte* rows[2][kDecodeSplit];
  Split now = first;
  FindRows(now, rows[0]);
  for (int i = 0; now.piece == &of; ++i) {
    const Split next = SplitAfter(now, item.piece);
    const int next_count = FindRows(next, rows[(i + 1) % 2]);
    int64_t count_now = 0;
    for (Run run; run.first < count; run.first += run.count) {
      run = RunFrom(item.queries, run.first, now);
      count_now += std::max<int64_t>(0, run.end - run.begin);
    }
    KvAhead ahead = Ahead(rows[(i + 1) % 2], next_count, count_now);
    const bool cold = heads < args.shape.kv_heads || (i == 0 && item.piece < beside);
    for (int64_t h = 0; h < heads; ++h) AttendHead(item, h, now, rows[i % 2], cold, ahead);
    now = next;
  }
}

// One kv head of a split, whose rows these are, for all queries.
void PiecesJob::AttendHead(const Item& item, int64_t head, const Split& of, const std::byte* const* rows, bool cold,
                           KvAhead& ahead) const {
  const AttentionShape& shape = args.shape;
  const int64_t head_bytes = shape.head_dim * static_cast<int64_t>(DTypeSize(shape.kv_dtype));
  const int64_t count = static_cast<int64_t>(item.queries.size()), kv_head = item.first_head + head;
  for (Run run; run.first < count; run.first += run.count) {
    run = RunFrom(item.queries, run.first, of);
    if (run.begin >= run.end) continue;
    const Seen all = Behind(item.seen[head], run.first), to = run.is_first ? all : item.aside;
    DecodeSplit split;
    split.q = item.q + (head * count + run.first) * group * padded_dim;
    split.rows = rows + (run.begin - of.begin);
    split.k_offset = kv_head * head_bytes;
    split.v_offset = (shape.kv_heads + kv_head) * head_bytes;
    split.cold = std::exchange(cold, false);
    split.ahead = &ahead;
    split.count = static_cast<int>(run.end - run.begin);
    split.group = static_cast<int>(run.count * group);
    split.head_dim = static_cast<int>(shape.head_dim);
    split.padded_dim = static_cast<int>(padded_dim);
    split.soft_cap = shape.soft_cap * kLog2E;
    split.scores = item.scores;
    split.max = to.max;
    split.sum = to.sum;
    split.acc = to.acc;
    SplitFor(kernels, shape.kv_dtype)(split);
    if (!run.is_first) Join(to, all, run.count * group);
    for (int64_t i = 0; i < run.count; ++i) {
      const Query& query = item.queries[run.first + i];
      const int64_t number = run.begin >> query.piece_bits;
      if (run.end != std::min((number + 1) << query.piece_bits, query.length)) continue;
      Finish(kv_head, query.first_piece + number, Behind(all, i));
    }
  }
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

// Says of a query's own pieces in `piece` that its window hides them, where it does.
void PiecesJob::HideUnseen(const CpuPiece& piece, const Query& query, int64_t first_head) const {
  const int64_t last = std::min<int64_t>(piece.end, query.length);
  for (int64_t begin = piece.begin; begin < last; begin += query.piece_tokens) {
    if (query.first_seen < std::min(begin + query.piece_tokens, last)) return;
    const int64_t row = query.first_piece + begin / query.piece_tokens;
    float* const logs = args.out.row<float>(row) + args.shape.heads * args.shape.head_dim;
    std::fill(logs + first_head * group, logs + (first_head + heads) * group, -std::numeric_limits<float>::infinity());
  }
}

void PiecesJob::RunItem(int64_t number) const {
  thread_local std::vector<Query> queries;
  thread_local Item item;                             // for its memory
  const int64_t items = args.shape.kv_heads / heads;  // of a piece
  item.piece = number / items;
  item.first_head = number % items * heads;
  const CpuPiece& of = args.table.held()[item.piece];
  FillQueries(of, queries);
  item.queries = queries;
  for (const Query& query : queries) HideUnseen(of, query, item.first_head);
  if (const Split first = FirstSplit(item.piece); first.piece != nullptr) Attend(item, first);
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
