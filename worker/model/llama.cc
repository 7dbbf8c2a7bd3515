#include "worker/model/llama.h"

#include <cmath>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/model/projection_scratch.h"

namespace runahead {
namespace {

// Slots of the sections' scratch.
enum LlamaSlot { kNormed, kQkv, kGateUp, kFfn };

std::vector<AttentionShape> ShapesOf(const ModelConfig& config, const Device& device) {
  AttentionShape shape;
  shape.heads = config.heads;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.kv_dtype = device.kv_dtype();
  shape.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  std::vector<AttentionShape> shapes(config.layers, shape);
  for (size_t layer = 0; layer < config.windows.size(); ++layer) shapes[layer].window = config.windows[layer];
  return shapes;
}

}  // namespace

LlamaModel::LlamaModel(ModelConfig config, std::shared_ptr<Device> device, LlamaWeights weights)
    : config_(std::move(config)),
      device_(std::move(device)),
      weights_(std::move(weights)),
      shapes_(ShapesOf(config_, *device_)) {}

std::vector<std::shared_ptr<const Weights>> LlamaModel::Tables() const {
  if (weights_.head == weights_.embedding) return {weights_.embedding};
  return {weights_.embedding, weights_.head};
}

absl::Status LlamaModel::Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const {
  return device_->Embed(rows.stream, *weights_.embedding, {ids.begin(), ids.end()}, false, x);
}

absl::Status LlamaModel::NormAndRotate(const SectionRows& rows, const LlamaLayer& layer, const Tensor& x,
                                       int64_t q_cols) const {
  const int64_t kv_cols = config_.kv_dim();
  if (layer.k_norm.ref.buffer != nullptr) {
    if (q_cols > 0) {
      RUNAHEAD_RETURN_IF_ERROR(
          device_->HeadNorm(rows.stream, x.Cols(0, q_cols), config_.head_dim, layer.q_norm, config_.norm_eps));
    }
    RUNAHEAD_RETURN_IF_ERROR(
        device_->HeadNorm(rows.stream, x.Cols(q_cols, kv_cols), config_.head_dim, layer.k_norm, config_.norm_eps));
  }
  return device_->Rope(rows.stream, x.Cols(0, q_cols + kv_cols), config_.head_dim, {.table = weights_.rotation},
                       rows.table, rows.first);
}

// Q, K, V = norm(x) * Wqkv + bqkv; Q and K normed by head, where the model does so, and rotated.
absl::Status LlamaModel::Project(const SectionRows& rows, int64_t index, const ConstTensor& x,
                                 const Projection& to) const {
  const LlamaLayer& layer = weights_.layers[index];
  RUNAHEAD_ASSIGN_OR_RETURN(
      const ProjectionScratch scratch,
      ScratchOf(*device_, rows, to, {kNormed, kQkv}, config_.hidden, config_.q_dim(), config_.kv_dim()));
  const auto norm = [&](const Tensor& out) {
    return device_->RmsNorm(rows.stream, x, layer.attention_norm, config_.norm_eps, out);
  };
  RUNAHEAD_RETURN_IF_ERROR(norm(scratch.normed));
  if (scratch.other_normed) RUNAHEAD_RETURN_IF_ERROR(norm(to.normed));
  RUNAHEAD_RETURN_IF_ERROR(device_->Linear(rows.stream, scratch.normed, rows.Matrix(layer.matrices, kLlamaQkv),
                                           {.batch_invariant = rows.batch_invariant, .bias = layer.qkv_bias},
                                           scratch.qkv));
  RUNAHEAD_RETURN_IF_ERROR(NormAndRotate(rows, layer, scratch.qkv, config_.q_dim()));
  if (to.qkv.ref.buffer != nullptr) return absl::OkStatus();
  return device_->StoreQkv(rows.stream, scratch.qkv, shapes_[index], to.q, rows.table, rows.first, to.kv);
}

// K, V = X * Wkv + bkv; K normed and rotated as in Project.
absl::Status LlamaModel::Recompute(const SectionRows& rows, int64_t index, const ConstTensor& normed,
                                   const BufferRef& kv) const {
  const LlamaLayer& layer = weights_.layers[index];
  const int64_t kv_cols = 2 * config_.kv_dim();
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor products, rows.scratch.Get(kQkv, DType::kF32, normed.rows, kv_cols));
  const Tensor k_and_v = products.Rows(0, rows.count);
  LinearOptions product{.batch_invariant = rows.batch_invariant, .first_row = config_.q_dim()};
  if (layer.qkv_bias.ref.buffer != nullptr) product.bias = layer.qkv_bias.Cols(config_.q_dim(), kv_cols);
  RUNAHEAD_RETURN_IF_ERROR(
      device_->Linear(rows.stream, normed, rows.Matrix(layer.matrices, kLlamaQkv), product, products));
  RUNAHEAD_RETURN_IF_ERROR(NormAndRotate(rows, layer, k_and_v, 0));
  return device_->StoreQkv(rows.stream, k_and_v, shapes_[index], {}, rows.table, rows.first, kv);
}

// x += attended * Wo + bo;  x += (silu(n * Wgate + bgate) . (n * Wup + bup)) * Wdown + bdown with n = norm(x).
absl::Status LlamaModel::Finish(const SectionRows& rows, int64_t index, const ConstTensor& attended,
                                const MutTensor& x) const {
  const LlamaLayer& layer = weights_.layers[index];
  const DType act = attended.dtype;
  const auto add = [&](const Tensor& bias) {
    return LinearOptions{.accumulate = true, .batch_invariant = rows.batch_invariant, .bias = bias};
  };
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed, rows.scratch.Get(kNormed, act, x.rows, config_.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor gate_up, rows.scratch.Get(kGateUp, act, x.rows, 2 * config_.ffn));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor ffn, rows.scratch.Get(kFfn, act, x.rows, config_.ffn));
  RUNAHEAD_RETURN_IF_ERROR(
      device_->Linear(rows.stream, attended, rows.Matrix(layer.matrices, kLlamaOutput), add(layer.output_bias), x));
  RUNAHEAD_RETURN_IF_ERROR(device_->RmsNorm(rows.stream, x, layer.ffn_norm, config_.norm_eps, normed));
  RUNAHEAD_RETURN_IF_ERROR(device_->Linear(rows.stream, normed, rows.Matrix(layer.matrices, kLlamaGateUp),
                                           {.batch_invariant = rows.batch_invariant, .bias = layer.gate_up_bias},
                                           gate_up));
  RUNAHEAD_RETURN_IF_ERROR(device_->GatedActivate(rows.stream, gate_up, Activation::kSilu, ffn));
  return device_->Linear(rows.stream, ffn, rows.Matrix(layer.matrices, kLlamaDown), add(layer.down_bias), x);
}

// norm(x) * Whead. The head is applied to few rows: it takes the batch-invariant form always.
absl::Status LlamaModel::Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                            rows.scratch.Get(kNormed, device_->invariant_dtype(), x.rows, config_.hidden));
  RUNAHEAD_RETURN_IF_ERROR(device_->RmsNorm(rows.stream, x, weights_.output_norm, config_.norm_eps, normed));
  return device_->Linear(rows.stream, normed, weights_.head, {.batch_invariant = true}, logits);
}

}  // namespace runahead
