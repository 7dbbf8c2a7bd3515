#include "worker/model/layer_norm_model.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Slots of the sections' scratch.
enum LayerNormSlot { kLayerNormNormed, kLayerNormProducts, kLayerNormFfn };

LinearOptions Adding(const SectionRows& rows, const Tensor& bias) {
  return {.accumulate = true, .batch_invariant = rows.batch_invariant, .bias = bias};
}

}  // namespace

absl::StatusOr<LayerNormWeights> LoadLayerNormEnds(const TensorLoader& loader, const ModelConfig& config,
                                                   const Rotary& rotary) {
  LayerNormWeights weights;
  RUNAHEAD_ASSIGN_OR_RETURN(weights.tables, LoadTokenTables(loader, config));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm, loader.Vector({{"output_norm.weight", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm_bias, loader.Vector({{"output_norm.bias", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.rotation, loader.UploadRotation(rotary, config.context_length));
  weights.layers.resize(config.layers);
  return weights;
}

LayerNormModel::LayerNormModel(ModelConfig config, std::shared_ptr<Device> device, LayerNormWeights weights)
    : config_(std::move(config)),
      device_(std::move(device)),
      weights_(std::move(weights)),
      shapes_(AttentionShapes(config_, *device_)) {}

absl::Status LayerNormModel::Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const {
  return device_->Embed(rows.stream, *weights_.tables.embedding, {ids.begin(), ids.end()}, false, x);
}

RotaryQkv LayerNormModel::Qkv(const SectionRows& rows, int64_t index) const {
  const LayerNormLayer& layer = weights_.layers[index];
  return {.device = *device_,
          .rows = rows,
          .shape = shapes_[index],
          .matrix = rows.Matrix(layer.matrices, kLayerNormQkv),
          .vectors = layer.qkv,
          .rotation = weights_.rotation,
          .norm_eps = config_.norm_eps,
          .slots = {kLayerNormNormed, kLayerNormProducts}};
}

absl::Status LayerNormModel::Project(const SectionRows& rows, int64_t index, const ConstTensor& x,
                                     const Projection& to) const {
  const LayerNormLayer& layer = weights_.layers[index];
  const auto norm = [&](const Tensor& out) {
    return device_->LayerNorm(rows.stream, x, layer.attention_norm, layer.attention_norm_bias, config_.norm_eps, out);
  };
  return Qkv(rows, index).Project(norm, to);
}

absl::Status LayerNormModel::Recompute(const SectionRows& rows, int64_t index, const ConstTensor& normed,
                                       const BufferRef& kv) const {
  return Qkv(rows, index).Recompute(normed, kv);
}

absl::Status LayerNormModel::AddAttended(const SectionRows& rows, int64_t index, const ConstTensor& attended,
                                         const MutTensor& x) const {
  const LayerNormLayer& layer = weights_.layers[index];
  return device_->Linear(rows.stream, attended, rows.Matrix(layer.matrices, kLayerNormOutput),
                         Adding(rows, layer.output_bias), x);
}

absl::StatusOr<Tensor> LayerNormModel::Up(const SectionRows& rows, int64_t index, const ConstTensor& x,
                                          Activation activation, DType dtype) const {
  const LayerNormLayer& layer = weights_.layers[index];
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed, rows.scratch.Get(kLayerNormNormed, dtype, x.rows, config_.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor up, rows.scratch.Get(kLayerNormFfn, dtype, x.rows, config_.ffn));
  RUNAHEAD_RETURN_IF_ERROR(
      device_->LayerNorm(rows.stream, x, layer.ffn_norm, layer.ffn_norm_bias, config_.norm_eps, normed));
  RUNAHEAD_RETURN_IF_ERROR(
      device_->Linear(rows.stream, normed, rows.Matrix(layer.matrices, kLayerNormUp),
                      {.batch_invariant = rows.batch_invariant, .bias = layer.up_bias, .activation = activation}, up));
  return up;
}

absl::Status LayerNormModel::AddMlp(const SectionRows& rows, int64_t index, const ConstTensor& up,
                                    const MutTensor& x) const {
  const LayerNormLayer& layer = weights_.layers[index];
  return device_->Linear(rows.stream, up, rows.Matrix(layer.matrices, kLayerNormDown), Adding(rows, layer.down_bias),
                         x);
}

// norm(x) * Whead.
absl::Status LayerNormModel::Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                            rows.scratch.Get(kLayerNormNormed, device_->invariant_dtype(), x.rows, config_.hidden));
  RUNAHEAD_RETURN_IF_ERROR(
      device_->LayerNorm(rows.stream, x, weights_.output_norm, weights_.output_norm_bias, config_.norm_eps, normed));
  return device_->Linear(rows.stream, normed, weights_.tables.head, {.batch_invariant = true}, logits);
}

}  // namespace runahead
