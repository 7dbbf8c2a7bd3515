#include "worker/model/gemma.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/gemma_config.h"
#include "worker/model/rotary.h"
#include "worker/model/rotary_qkv.h"
#include "worker/model/tensor_loader.h"
#include "worker/model/token_tables.h"

namespace runahead {
namespace {

// A layer's matrices, in the order of Model::Matrices.
enum GemmaMatrix {
  kGemmaQkvMatrix,     // [q_dim + 2*kv_dim, hidden]: Q over K over V
  kGemmaOutputMatrix,  // [hidden, q_dim]
  kGemmaGateUpMatrix,  // [2*ffn, hidden]: gate over up
  kGemmaDownMatrix,    // [hidden, ffn]
};

// Norms are f32 [1, hidden].
struct GemmaLayer {
  Tensor attention_norm, after_attention_norm, ffn_norm, after_ffn_norm;
  QkvVectors qkv;
  std::array<std::shared_ptr<const Weights>, 4> matrices;
};

struct GemmaWeights {
  TokenTables tables;
  std::vector<GemmaLayer> layers;
  Tensor output_norm;                      // f32 [1, hidden]
  Tensor global_rotation, local_rotation;  // f32 [context_length, rotated dimensions]; one where they are the same
};

// Slots of the sections' scratch.
enum GemmaSlot { kGemmaNormed, kGemmaQkv, kGemmaGateUp, kGemmaFfn, kGemmaResult };

class GemmaModel final : public Model {
 public:
  GemmaModel(ModelConfig config, GemmaTraits traits, std::shared_ptr<Device> device, GemmaWeights weights)
      : config_(std::move(config)),
        traits_(std::move(traits)),
        device_(std::move(device)),
        weights_(std::move(weights)),
        shapes_(AttentionShapes(config_, *device_)) {
    for (AttentionShape& shape : shapes_) {
      shape.scale = traits_.attention_scale;
      shape.soft_cap = traits_.attention_soft_cap;
    }
  }
  const ModelConfig& config() const override { return config_; }
  const AttentionShape& attention(int64_t layer) const override { return shapes_[layer]; }
  LayerMatrices Matrices(int64_t layer) const override { return weights_.layers[layer].matrices; }
  std::vector<std::shared_ptr<const Weights>> Tables() const override { return weights_.tables.All(); }

  // x = Wtoken[id] * sqrt(hidden).
  absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const override {
    RUNAHEAD_RETURN_IF_ERROR(
        device_->Embed(rows.stream, *weights_.tables.embedding, {ids.begin(), ids.end()}, false, x));
    return device_->Scale(rows.stream, x, std::sqrt(static_cast<float>(config_.hidden)), false, x);
  }

  absl::Status Project(const SectionRows& rows, int64_t index, const ConstTensor& x,
                       const Projection& to) const override {
    const auto norm = [&](const Tensor& out) {
      return device_->RmsNorm(rows.stream, x, weights_.layers[index].attention_norm, config_.norm_eps, out);
    };
    return Qkv(rows, index).Project(norm, to);
  }

  absl::Status Recompute(const SectionRows& rows, int64_t index, const ConstTensor& normed,
                         const BufferRef& kv) const override {
    return Qkv(rows, index).Recompute(normed, kv);
  }

  // x += norm(attended * Wo);  x += norm((gelu(n * Wgate) . (n * Wup)) * Wdown) with n = norm(x).
  absl::Status Finish(const SectionRows& rows, int64_t index, const ConstTensor& attended,
                      const MutTensor& x) const override {
    const GemmaLayer& layer = weights_.layers[index];
    const DType act = attended.dtype;
    const LinearOptions product{.batch_invariant = rows.batch_invariant};
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed, rows.scratch.Get(kGemmaNormed, act, x.rows, config_.hidden));
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor gate_up, rows.scratch.Get(kGemmaGateUp, act, x.rows, 2 * config_.ffn));
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor ffn, rows.scratch.Get(kGemmaFfn, act, x.rows, config_.ffn));
    RUNAHEAD_RETURN_IF_ERROR(
        AddNormed(rows, attended, rows.Matrix(layer.matrices, kGemmaOutputMatrix), layer.after_attention_norm, x));
    RUNAHEAD_RETURN_IF_ERROR(device_->RmsNorm(rows.stream, x, layer.ffn_norm, config_.norm_eps, normed));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->Linear(rows.stream, normed, rows.Matrix(layer.matrices, kGemmaGateUpMatrix), product, gate_up));
    RUNAHEAD_RETURN_IF_ERROR(device_->GatedActivate(rows.stream, gate_up, Activation::kGeluTanh, ffn));
    return AddNormed(rows, ffn, rows.Matrix(layer.matrices, kGemmaDownMatrix), layer.after_ffn_norm, x);
  }

  // cap(norm(x) * Whead).
  absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const override {
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                              rows.scratch.Get(kGemmaNormed, device_->invariant_dtype(), x.rows, config_.hidden));
    RUNAHEAD_RETURN_IF_ERROR(device_->RmsNorm(rows.stream, x, weights_.output_norm, config_.norm_eps, normed));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->Linear(rows.stream, normed, weights_.tables.head, {.batch_invariant = true}, logits));
    if (traits_.final_soft_cap == 0) return absl::OkStatus();
    return device_->SoftCap(rows.stream, logits, traits_.final_soft_cap);
  }

 private:
  RotaryQkv Qkv(const SectionRows& rows, int64_t index) const {
    const GemmaLayer& layer = weights_.layers[index];
    return {.device = *device_,
            .rows = rows,
            .shape = shapes_[index],
            .matrix = rows.Matrix(layer.matrices, kGemmaQkvMatrix),
            .vectors = layer.qkv,
            .rotation = traits_.local[index] ? weights_.local_rotation : weights_.global_rotation,
            .norm_eps = config_.norm_eps,
            .slots = {kGemmaNormed, kGemmaQkv}};
  }

  // to += norm(x * matrix).
  absl::Status AddNormed(const SectionRows& rows, const ConstTensor& x, const std::shared_ptr<const Weights>& matrix,
                         const Tensor& norm, const MutTensor& to) const {
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor result, rows.scratch.Get(kGemmaResult, DType::kF32, x.rows, config_.hidden));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->Linear(rows.stream, x, matrix, {.batch_invariant = rows.batch_invariant}, result));
    RUNAHEAD_RETURN_IF_ERROR(device_->HeadNorm(rows.stream, result, config_.hidden, norm, config_.norm_eps));
    return device_->Scale(rows.stream, result, 1, true, to);
  }

  const ModelConfig config_;
  const GemmaTraits traits_;
  const std::shared_ptr<Device> device_;
  const GemmaWeights weights_;
  std::vector<AttentionShape> shapes_;  // by layer
};

absl::Status LoadGemmaLayer(const TensorLoader& loader, const GemmaTraits& traits, const ModelConfig& config,
                            int64_t index, GemmaLayer& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t hidden = config.hidden, ffn = config.ffn;
  RUNAHEAD_ASSIGN_OR_RETURN(
      LoadedQkv qkv, LoadQkv(loader, config, prefix, {.head_norm = traits.head_norm, .norm_plus = traits.norm_plus}));
  layer.matrices[kGemmaQkvMatrix] = std::move(qkv.matrix);
  layer.qkv = std::move(qkv.vectors);
  WeightSource gate_up;
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "ffn_gate.weight", ffn, hidden, gate_up));
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "ffn_up.weight", ffn, hidden, gate_up));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kGemmaGateUpMatrix], loader.Load(gate_up));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kGemmaOutputMatrix],
                            loader.Matrix(prefix + "attn_output.weight", hidden, config.q_dim()));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kGemmaDownMatrix], loader.Matrix(prefix + "ffn_down.weight", hidden, ffn));
  const struct {
    const char* name;
    Tensor& to;
  } norms[] = {{"attn_norm", layer.attention_norm},
               {"post_attention_norm", layer.after_attention_norm},
               {"ffn_norm", layer.ffn_norm},
               {"post_ffw_norm", layer.after_ffn_norm}};
  for (const auto& [name, to] : norms) {
    RUNAHEAD_ASSIGN_OR_RETURN(to, loader.Vector({{absl::StrCat(prefix, name, ".weight"), hidden}}, traits.norm_plus));
  }
  return absl::OkStatus();
}

// Everything that is not a layer.
absl::Status LoadGemmaEnds(const TensorLoader& loader, const GemmaTraits& traits, const ModelConfig& config,
                           GemmaWeights& weights) {
  RUNAHEAD_ASSIGN_OR_RETURN(weights.tables, LoadTokenTables(loader, config));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm,
                            loader.Vector({{"output_norm.weight", config.hidden}}, traits.norm_plus));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.global_rotation,
                            loader.UploadRotation(traits.global_rotary, config.context_length));
  weights.local_rotation = weights.global_rotation;
  if (traits.local_rotary == traits.global_rotary) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(weights.local_rotation, loader.UploadRotation(traits.local_rotary, config.context_length));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Model>> LoadGemma(const TensorLoader& loader, ModelConfig config,
                                                       const std::function<void(int, int)>& progress) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string architecture, loader.file().GetString("general.architecture"));
  RUNAHEAD_ASSIGN_OR_RETURN(GemmaTraits traits, ReadGemmaTraits(ConfigKeys(loader.file(), architecture), config));
  GemmaWeights weights;
  weights.layers.resize(config.layers);
  RUNAHEAD_RETURN_IF_ERROR(LoadGemmaEnds(loader, traits, config, weights));
  RUNAHEAD_RETURN_IF_ERROR(LoadLayers(
      config.layers,
      [&](int64_t index) { return LoadGemmaLayer(loader, traits, config, index, weights.layers[index]); }, progress));
  if (loader.only_checks()) return nullptr;
  return std::make_shared<const GemmaModel>(std::move(config), std::move(traits), loader.device(), std::move(weights));
}

}  // namespace runahead
