// Decode attention, second half: the pieces of a query become one row, in order of position. A head's result depends
// on its pieces alone, so it is bitwise the same in any batch, on any number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/for_rows.h"

namespace runahead {
namespace {

constexpr float kNoWeight = -std::numeric_limits<float>::infinity();

void MergeHead(const ConstTensor& partials, const AttentionShape& shape, const CpuKvTable& table, int64_t query,
               int64_t head, const MutTensor& out) {
  const int64_t first = table.first_piece(query), end = table.first_piece(query + 1);
  const int64_t means_at = head * shape.head_dim, log_at = shape.heads * shape.head_dim + head;
  std::byte* const to = RowBytes(out, query) + means_at * DTypeSize(out.dtype);
  if (end - first == 1 && std::isfinite(partials.row<const float>(first)[log_at])) {
    return StoreFloats(partials.row<const float>(first) + means_at, out.dtype, 0, shape.head_dim, to);
  }
  float max = kNoWeight;
  for (int64_t p = first; p < end; ++p) max = std::max(max, partials.row<const float>(p)[log_at]);
  float sums[kMaxAttentionHeadDim];
  std::fill(sums, sums + shape.head_dim, 0.0f);
  float weights = 0.0f;
  for (int64_t p = first; p < end; ++p) {
    const float* const row = partials.row<const float>(p);
    if (row[log_at] == kNoWeight) continue;  // what stands beside it may be anything
    const float weight = std::exp2(row[log_at] - max);
    weights += weight;
    for (int64_t d = 0; d < shape.head_dim; ++d) sums[d] += weight * row[means_at + d];
  }
  const float factor = weights == 0.0f ? 0.0f : 1.0f / weights;
  for (int64_t d = 0; d < shape.head_dim; ++d) sums[d] *= factor;
  StoreFloats(sums, out.dtype, 0, shape.head_dim, to);
}

}  // namespace

void MergeCpuPieces(ThreadPool& pool, const ConstTensor& partials, const AttentionShape& shape, const CpuKvTable& table,
                    const MutTensor& out) {
  const int64_t heads = out.rows * shape.heads;
  if (heads == 0) return;
  const int64_t per_head = std::max<int64_t>(1, table.pieces() / out.rows) * shape.head_dim;
  ForRows(pool, heads, per_head,
          [&](int64_t i) { MergeHead(partials, shape, table, i / shape.heads, i % shape.heads, out); });
}

}  // namespace runahead
