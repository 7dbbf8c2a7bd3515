#include "worker/model/llama.h"

#include <cmath>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/model/projection_scratch.h"

namespace runahead {
namespace {

// Slots of the sections' scratch.
enum LlamaSlot { kNormed, kQkv, kGateUp, kFfn };

}  // namespace

LlamaModel::LlamaModel(ModelConfig config, std::shared_ptr<Device> device, LlamaWeights weights)
    : config_(std::move(config)), device_(std::move(device)), weights_(std::move(weights)) {
  shape_.heads = config_.heads;
  shape_.kv_heads = config_.kv_heads;
  shape_.head_dim = config_.head_dim;
  shape_.kv_dtype = device_->kv_dtype();
  shape_.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
}

std::vector<std::shared_ptr<const Weights>> LlamaModel::Tables() const {
  if (weights_.head == weights_.embedding) return {weights_.embedding};
  return {weights_.embedding, weights_.head};
}

absl::Status LlamaModel::Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const {
  return device_->Embed(rows.stream, *weights_.embedding, {ids.begin(), ids.end()}, false, x);
}

// Q, K, V = norm(x) * Wqkv; Q and K rotated.
absl::Status LlamaModel::Project(const SectionRows& rows, int64_t index, const ConstTensor& x,
                                 const Projection& to) const {
  const LlamaLayer& layer = weights_.layers[index];
  const int64_t q_cols = config_.heads * config_.head_dim;
  RUNAHEAD_ASSIGN_OR_RETURN(const ProjectionScratch scratch,
                            ScratchOf(*device_, rows, to, {kNormed, kQkv}, config_.hidden, q_cols, config_.kv_dim()));
  const auto norm = [&](const Tensor& out) {
    return device_->RmsNorm(rows.stream, x, layer.attention_norm, config_.norm_eps, out);
  };
  RUNAHEAD_RETURN_IF_ERROR(norm(scratch.normed));
  if (scratch.other_normed) RUNAHEAD_RETURN_IF_ERROR(norm(to.normed));
  RUNAHEAD_RETURN_IF_ERROR(device_->Linear(rows.stream, scratch.normed, rows.Matrix(layer.matrices, kLlamaQkv),
                                           {.batch_invariant = rows.batch_invariant}, scratch.qkv));
  RUNAHEAD_RETURN_IF_ERROR(device_->Rope(rows.stream, scratch.qkv.Cols(0, q_cols + config_.kv_dim()), config_.head_dim,
                                         {.table = weights_.rotation}, rows.table, rows.first));
  if (to.qkv.ref.buffer != nullptr) return absl::OkStatus();
  return device_->StoreQkv(rows.stream, scratch.qkv, shape_, to.q, rows.table, rows.first, to.kv);
}

// K, V = X * Wkv; K rotated.
absl::Status LlamaModel::Recompute(const SectionRows& rows, int64_t index, const ConstTensor& normed,
                                   const BufferRef& kv) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor products,
                            rows.scratch.Get(kQkv, DType::kF32, normed.rows, 2 * config_.kv_dim()));
  const Tensor k_and_v = products.Rows(0, rows.count);
  const LinearOptions product{.batch_invariant = rows.batch_invariant, .first_row = config_.heads * config_.head_dim};
  RUNAHEAD_RETURN_IF_ERROR(
      device_->Linear(rows.stream, normed, rows.Matrix(Matrices(index), kLlamaQkv), product, products));
  RUNAHEAD_RETURN_IF_ERROR(device_->Rope(rows.stream, k_and_v.Cols(0, config_.kv_dim()), config_.head_dim,
                                         {.table = weights_.rotation}, rows.table, rows.first));
  return device_->StoreQkv(rows.stream, k_and_v, shape_, {}, rows.table, rows.first, kv);
}

// x += attended * Wo;  x += (silu(norm(x) * Wgate) . (norm(x) * Wup)) * Wdown.
absl::Status LlamaModel::Finish(const SectionRows& rows, int64_t index, const ConstTensor& attended,
                                const MutTensor& x) const {
  const LlamaLayer& layer = weights_.layers[index];
  const DType act = attended.dtype;
  const LinearOptions product{.batch_invariant = rows.batch_invariant};
  const LinearOptions add{.accumulate = true, .batch_invariant = rows.batch_invariant};
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed, rows.scratch.Get(kNormed, act, x.rows, config_.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor gate_up, rows.scratch.Get(kGateUp, act, x.rows, 2 * config_.ffn));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor ffn, rows.scratch.Get(kFfn, act, x.rows, config_.ffn));
  RUNAHEAD_RETURN_IF_ERROR(device_->Linear(rows.stream, attended, rows.Matrix(layer.matrices, kLlamaOutput), add, x));
  RUNAHEAD_RETURN_IF_ERROR(device_->RmsNorm(rows.stream, x, layer.ffn_norm, config_.norm_eps, normed));
  RUNAHEAD_RETURN_IF_ERROR(
      device_->Linear(rows.stream, normed, rows.Matrix(layer.matrices, kLlamaGateUp), product, gate_up));
  RUNAHEAD_RETURN_IF_ERROR(device_->GatedActivate(rows.stream, gate_up, Activation::kSilu, ffn));
  return device_->Linear(rows.stream, ffn, rows.Matrix(layer.matrices, kLlamaDown), add, x);
}

// norm(x) * Whead. The head is applied to few rows: it takes the batch-invariant form always.
absl::Status LlamaModel::Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                            rows.scratch.Get(kNormed, device_->invariant_dtype(), x.rows, config_.hidden));
  RUNAHEAD_RETURN_IF_ERROR(device_->RmsNorm(rows.stream, x, weights_.output_norm, config_.norm_eps, normed));
  return device_->Linear(rows.stream, normed, weights_.head, {.batch_invariant = true}, logits);
}

}  // namespace runahead
