// How K and V made from X come to their rows.
#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/status_macros.h"
#include "worker/model/model.h"
#include "worker/model/row_blocks.h"

namespace runahead {

// Whether a product may write K and V to their rows itself, rounded once more where they are rotated afterwards: it
// writes what KV is kept in. Where the result is to be bitwise Project's it is rounded last.
inline bool WritesKv(const Device& device, const SectionRows& rows, const AttentionShape& shape) {
  return !rows.batch_invariant && shape.kv_dtype == device.compute_dtype();
}

// [rows.count, 2*kv_heads*head_dim]: those rows, which follow each other behind `kv`.
inline Tensor RowsOfKv(const SectionRows& rows, const AttentionShape& shape, const BufferRef& kv) {
  const int64_t first = rows.table.own_rows()[rows.first], row_bytes = shape.kv_row_bytes();
  RUNAHEAD_CHECK(rows.table.own_rows()[rows.first + rows.count - 1] == first + rows.count - 1);
  const BufferRef ref = kv.Slice(static_cast<size_t>(first * row_bytes), static_cast<size_t>(rows.count * row_bytes));
  return MakeTensor(ref, shape.kv_dtype, rows.count, 2 * shape.kv_heads * shape.head_dim);
}

// Calls product(rows, normed, blocks) for pieces of `rows`, with as many rows of `normed` and what of rows.blocks is
// theirs, so that a result in f32 takes little memory.
inline absl::Status InPieces(
    const Device& device, const SectionRows& rows, const ConstTensor& normed,
    absl::FunctionRef<absl::Status(const SectionRows& rows, const ConstTensor& normed)> product) {
  if (rows.blocks.empty()) return product(rows, normed);
  return ForRowBlocks(rows.blocks, device.gemm_rows(),
                      [&](int64_t first, absl::Span<const int32_t> blocks, int64_t count) {
                        const SectionRows piece{.stream = rows.stream,
                                                .scratch = rows.scratch,
                                                .table = rows.table,
                                                .first = rows.first + first,
                                                .count = count,
                                                .batch_invariant = rows.batch_invariant,
                                                .matrices = rows.matrices,
                                                .blocks = blocks};
                        return product(piece, normed.Rows(first, count));
                      });
}

// Of the product with K's and V's rows, the last of a layer's Q, K and V.
inline LinearOptions KvProduct(const SectionRows& rows, const AttentionShape& shape, const Tensor& bias) {
  const int64_t q_cols = shape.heads * shape.head_dim;
  LinearOptions options{
      .batch_invariant = rows.batch_invariant, .first_row = q_cols, .blocks = {rows.blocks.begin(), rows.blocks.end()}};
  if (bias.ref.buffer != nullptr) options.bias = bias.Cols(q_cols, 2 * shape.kv_heads * shape.head_dim);
  return options;
}

}  // namespace runahead
