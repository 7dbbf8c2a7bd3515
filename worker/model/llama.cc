#include "worker/model/llama.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Slots of the sections' scratch.
enum LlamaSlot { kNormed, kQkv, kGateUp, kFfn };

}  // namespace

LlamaModel::LlamaModel(ModelConfig config, std::shared_ptr<Device> device, LlamaWeights weights)
    : config_(std::move(config)),
      device_(std::move(device)),
      weights_(std::move(weights)),
      shapes_(AttentionShapes(config_, *device_)) {}

absl::Status LlamaModel::Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const {
  return device_->Embed(rows.stream, *weights_.tables.embedding, {ids.begin(), ids.end()}, false, x);
}

RotaryQkv LlamaModel::Qkv(const SectionRows& rows, int64_t index) const {
  const LlamaLayer& layer = weights_.layers[index];
  return {.device = *device_,
          .rows = rows,
          .shape = shapes_[index],
          .matrix = rows.Matrix(layer.matrices, kLlamaQkv),
          .vectors = layer.qkv,
          .rotation = weights_.rotation,
          .norm_eps = config_.norm_eps,
          .slots = {kNormed, kQkv}};
}

absl::Status LlamaModel::Project(const SectionRows& rows, int64_t index, const ConstTensor& x,
                                 const Projection& to) const {
  const auto norm = [&](const Tensor& out) {
    return device_->RmsNorm(rows.stream, x, weights_.layers[index].attention_norm, config_.norm_eps, out);
  };
  return Qkv(rows, index).Project(norm, to);
}

absl::Status LlamaModel::Recompute(const SectionRows& rows, int64_t index, const ConstTensor& normed,
                                   const BufferRef& kv) const {
  return Qkv(rows, index).Recompute(normed, kv);
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
  return device_->Linear(rows.stream, normed, weights_.tables.head, {.batch_invariant = true}, logits);
}

}  // namespace runahead
