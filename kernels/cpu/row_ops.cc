#include "kernels/cpu/row_ops.h"

#include "kernels/cpu/elements.h"

namespace runahead {
void RowOps::Embed(const CpuWeights& table, const std::vector<int32_t>& ids, bool accumulate,
                   const MutTensor& out) const {
  if (!accumulate) {
    return ForRows(out.rows, out.cols, [&](int64_t t) { table.ReadRow(kernels, ids[t], out.row<float>(t)); });
  }
  ForRows(out.rows, out.cols, [&](int64_t t) {
    thread_local std::vector<float> row;
    row.resize(static_cast<size_t>(out.cols));
    table.ReadRow(kernels, ids[t], row.data());
    float* const to = out.row<float>(t);
    for (int64_t c = 0; c < out.cols; ++c) to[c] += row[c];
  });
}

void RowOps::RmsNorm(const ConstTensor& x, const ConstTensor& weight, float eps, const MutTensor& out) const {
  ForRows(x.rows, x.cols, [&](int64_t t) {
    kernels.rms_norm_row(x.row<float>(t), weight.row<float>(0), eps, x.cols, RowBytes(out, t), out.dtype);
  });
}

void RowOps::HeadNorm(const MutTensor& x, int64_t head_dim, const ConstTensor& weight, float eps) const {
  ForRows(x.rows, x.cols, [&](int64_t t) {
    float* const row = x.row<float>(t);
    for (int64_t at = 0; at < x.cols; at += head_dim) {
      kernels.rms_norm_row(row + at, weight.row<float>(0), eps, head_dim, row + at, DType::kF32);
    }
  });
}

void RowOps::Rope(const MutTensor& x, int64_t head_dim, const Rotation& rotation, const KvTable& table,
                  int64_t first_row) const {
  const int64_t half = rotation.table.cols / 2;
  ForRows(x.rows, x.cols, [&](int64_t t) {
    const float* const cos_sin = rotation.table.row<float>(table.positions()[first_row + t]);
    if (x.dtype == DType::kF32) {
      for (int64_t at = 0; at < x.cols; at += head_dim)
        kernels.rotate_head(x.row<float>(t) + at, cos_sin, half, rotation.interleaved);
      return;
    }
    thread_local std::vector<float> head;
    head.resize(static_cast<size_t>(head_dim));
    for (int64_t at = 0; at < x.cols; at += head_dim) {
      LoadFloats(RowBytes(x, t), x.dtype, at, head_dim, head.data());
      kernels.rotate_head(head.data(), cos_sin, half, rotation.interleaved);
      StoreFloats(head.data(), x.dtype, at, head_dim, RowBytes(x, t));
    }
  });
}

void RowOps::StoreQkv(const ConstTensor& qkv, const AttentionShape& shape, const MutTensor& q, const KvTable& table,
                      int64_t first_row, const BufferRef& layer) const {
  const int64_t q_dim = q.ref.buffer == nullptr ? 0 : shape.heads * shape.head_dim;
  ForRows(qkv.rows, qkv.cols, [&](int64_t t) {
    const float* const from = qkv.row<float>(t);
    if (q_dim > 0) kernels.convert_row(from, q_dim, RowBytes(q, t), q.dtype);
    std::byte* const own = layer.data() + table.own_rows()[first_row + t] * shape.kv_row_bytes();
    kernels.convert_row(from + q_dim, qkv.cols - q_dim, own, shape.kv_dtype);
  });
}

void RowOps::GatedActivate(const ConstTensor& gate_up, Activation activation, const MutTensor& out) const {
  // An element costs about four times one of the other ops.
  ForRows(out.rows, 4 * out.cols, [&](int64_t t) {
    kernels.gated_activate_row(activation, RowBytes(gate_up, t), gate_up.dtype, out.cols, RowBytes(out, t), out.dtype);
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
