#include "kernels/cpu/row_ops.h"

#include "kernels/cpu/elements.h"

namespace runahead {
namespace {

// Where the KV row of each of `count` rows starts.
std::vector<std::byte*> KvRowPointers(const std::vector<KvSpan>& kv, size_t row_bytes, size_t count) {
  std::vector<std::byte*> rows;
  rows.reserve(count);
  for (const KvSpan& span : kv) {
    for (int64_t t = 0; t < span.tokens && rows.size() < count; ++t) rows.push_back(span.rows.data() + t * row_bytes);
  }
  return rows;
}

}  // namespace

void RowOps::Embed(const StoredWeights& table, const std::vector<int32_t>& ids, const MutTensor& out) const {
  ForRows(out.rows, out.cols, [&](int64_t t) { table.DequantizeRow(kernels, ids[t], out.row<float>(t)); });
}

void RowOps::RmsNorm(const ConstTensor& x, const ConstTensor& weight, float eps, const MutTensor& out) const {
  ForRows(x.rows, x.cols, [&](int64_t t) {
    kernels.rms_norm_row(x.row<float>(t), weight.row<float>(0), eps, x.cols, RowBytes(out, t), out.dtype);
  });
}

void RowOps::RopeStore(const ConstTensor& qkv, const AttentionShape& shape, const ConstTensor& rotation,
                       const std::vector<int32_t>& positions, const MutTensor& q, const std::vector<KvSpan>& kv) const {
  const std::vector<std::byte*> kv_rows = KvRowPointers(kv, shape.kv_row_bytes(), positions.size());
  const int64_t dim = shape.head_dim;
  const int64_t kv_dim = shape.kv_heads * dim;
  const size_t q_element = DTypeSize(q.dtype);
  const size_t kv_element = DTypeSize(shape.kv_dtype);
  ForRows(qkv.rows, qkv.cols, [&](int64_t t) {
    const float* from = qkv.row<float>(t);
    const float* cos_sin = rotation.row<float>(positions[t]);
    for (int64_t h = 0; h < shape.heads; ++h, from += dim) {
      kernels.rotate_head(from, cos_sin, dim / 2, RowBytes(q, t) + h * dim * q_element, q.dtype);
    }
    for (int64_t h = 0; h < shape.kv_heads; ++h, from += dim) {
      kernels.rotate_head(from, cos_sin, dim / 2, kv_rows[t] + h * dim * kv_element, shape.kv_dtype);
    }
    kernels.convert_row(from, kv_dim, kv_rows[t] + kv_dim * kv_element, shape.kv_dtype);
  });
}

void RowOps::SwiGlu(const ConstTensor& gate_up, const MutTensor& out) const {
  // An element costs about four times one of the other ops.
  ForRows(out.rows, 4 * out.cols, [&](int64_t t) {
    kernels.swiglu_row(RowBytes(gate_up, t), gate_up.dtype, out.cols, RowBytes(out, t), out.dtype);
  });
}

void RowOps::TopK(const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
                  const MutTensor& log_sum) const {
  ForRows(logits.rows, logits.cols, [&](int64_t t) {
    kernels.top_k_row(logits.row<float>(t), logits.cols, k, ids.row<int32_t>(t), values.row<float>(t),
                      log_sum.row<float>(t));
  });
}

}  // namespace runahead
