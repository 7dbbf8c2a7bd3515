#include "worker/model/rotary_qkv.h"

#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/model/recomputed_kv.h"

namespace runahead {

absl::Status RotaryQkv::NormHeads(const Tensor& x, int64_t queries) const {
  if (vectors.k_norm.ref.buffer == nullptr) return absl::OkStatus();
  if (queries > 0) {
    RUNAHEAD_RETURN_IF_ERROR(
        device.HeadNorm(rows.stream, x.Cols(0, queries), shape.head_dim, vectors.q_norm, norm_eps));
  }
  return device.HeadNorm(rows.stream, x.Cols(queries, k_cols()), shape.head_dim, vectors.k_norm, norm_eps);
}

absl::Status RotaryQkv::Rotate(const Tensor& x, int64_t first) const {
  return device.Rope(rows.stream, x, shape.head_dim, {.table = rotation}, rows.table, first);
}

absl::Status RotaryQkv::Project(absl::FunctionRef<absl::Status(const Tensor& out)> norm, const Projection& to) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const ProjectionScratch scratch,
                            ScratchOf(device, rows, to, slots, matrix->cols(), q_cols(), k_cols()));
  RUNAHEAD_RETURN_IF_ERROR(norm(scratch.normed));
  if (scratch.other_normed) RUNAHEAD_RETURN_IF_ERROR(norm(to.normed));
  RUNAHEAD_RETURN_IF_ERROR(device.Linear(rows.stream, scratch.normed, matrix,
                                         {.batch_invariant = rows.batch_invariant, .bias = vectors.bias}, scratch.qkv));
  RUNAHEAD_RETURN_IF_ERROR(NormHeads(scratch.qkv, q_cols()));
  RUNAHEAD_RETURN_IF_ERROR(Rotate(scratch.qkv.Cols(0, q_cols() + k_cols()), rows.first));
  if (to.qkv.ref.buffer != nullptr) return absl::OkStatus();
  return device.StoreQkv(rows.stream, scratch.qkv, shape, to.q, rows.table, rows.first, to.kv);
}

absl::Status RotaryQkv::Recompute(const ConstTensor& normed, const BufferRef& kv) const {
  if (WritesKv(device, rows, shape) && vectors.k_norm.ref.buffer == nullptr) {
    const Tensor to = RowsOfKv(rows, shape, kv);
    RUNAHEAD_RETURN_IF_ERROR(device.Linear(rows.stream, normed, matrix, KvProduct(rows, shape, vectors.bias), to));
    return Rotate(to.Cols(0, k_cols()), rows.first);
  }
  return InPieces(device, rows, normed, [&](const SectionRows& piece, const ConstTensor& x) -> absl::Status {
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor k_and_v,
                              rows.scratch.Get(slots.qkv, DType::kF32, piece.count, 2 * k_cols()));
    RUNAHEAD_RETURN_IF_ERROR(device.Linear(rows.stream, x, matrix, KvProduct(piece, shape, vectors.bias), k_and_v));
    RUNAHEAD_RETURN_IF_ERROR(NormHeads(k_and_v, 0));
    RUNAHEAD_RETURN_IF_ERROR(Rotate(k_and_v.Cols(0, k_cols()), piece.first));
    return device.StoreQkv(rows.stream, k_and_v, shape, {}, rows.table, piece.first, kv);
  });
}

namespace {

// [q_dim + 2*kv_dim], or without a buffer where the file has none and needs none.
absl::StatusOr<Tensor> LoadBias(const TensorLoader& loader, const ModelConfig& config, const std::string& prefix,
                                const QkvForm& form) {
  if (form.fused) return loader.VectorOrNone({{prefix + "attn_qkv.bias", config.q_dim() + 2 * config.kv_dim()}});
  if (!form.needs_bias && !loader.file().FindTensor(prefix + "attn_q.bias").ok()) return Tensor();
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<float> q, loader.Floats({prefix + "attn_q.bias", config.q_dim()}));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<float> k, loader.Floats({prefix + "attn_k.bias", config.kv_dim()}));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<float> v, loader.Floats({prefix + "attn_v.bias", config.kv_dim()}));
  std::vector<float> all;
  const int64_t dim = config.head_dim;
  for (const std::vector<float>* part : {&q, &k}) {
    for (int64_t i = 0; i < static_cast<int64_t>(part->size()); ++i) {
      all.push_back((*part)[form.permuted ? i / dim * dim + StoredRow(i % dim, dim) : i]);
    }
  }
  all.insert(all.end(), v.begin(), v.end());
  return loader.Upload(all, 1);
}

// Appends Q over K over V.
absl::Status AppendQkv(const TensorLoader& loader, const ModelConfig& config, const std::string& prefix,
                       const QkvForm& form, WeightSource& source) {
  if (form.fused) {
    return loader.Append(prefix + "attn_qkv.weight", config.q_dim() + 2 * config.kv_dim(), config.hidden, source);
  }
  const auto append = [&](const char* name, int64_t heads) {
    if (!form.permuted) return loader.Append(prefix + name, heads * config.head_dim, config.hidden, source);
    return loader.AppendUnpermuted(prefix + name, heads, config.head_dim, config.hidden, source);
  };
  RUNAHEAD_RETURN_IF_ERROR(append("attn_q.weight", config.heads));
  RUNAHEAD_RETURN_IF_ERROR(append("attn_k.weight", config.kv_heads));
  return loader.Append(prefix + "attn_v.weight", config.kv_dim(), config.hidden, source);
}

}  // namespace

absl::StatusOr<LoadedQkv> LoadQkv(const TensorLoader& loader, const ModelConfig& config, const std::string& prefix,
                                  const QkvForm& form) {
  LoadedQkv loaded;
  WeightSource source;
  RUNAHEAD_RETURN_IF_ERROR(AppendQkv(loader, config, prefix, form, source));
  source.cuts = {config.q_dim()};  // K and V alone
  RUNAHEAD_ASSIGN_OR_RETURN(loaded.matrix, loader.LoadForRecompute(source));
  RUNAHEAD_ASSIGN_OR_RETURN(loaded.vectors.bias, LoadBias(loader, config, prefix, form));
  if (!form.head_norm) return loaded;
  const auto norm = [&](const char* name) { return loader.Vector({{prefix + name, config.head_dim}}, form.norm_plus); };
  RUNAHEAD_ASSIGN_OR_RETURN(loaded.vectors.q_norm, norm("attn_q_norm.weight"));
  RUNAHEAD_ASSIGN_OR_RETURN(loaded.vectors.k_norm, norm("attn_k_norm.weight"));
  return loaded;
}

}  // namespace runahead
