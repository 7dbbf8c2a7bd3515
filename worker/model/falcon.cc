#include "worker/model/falcon.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/config_keys.h"
#include "worker/model/rotary.h"
#include "worker/model/rotary_qkv.h"
#include "worker/model/tensor_loader.h"
#include "worker/model/token_tables.h"

namespace runahead {
namespace {

// A layer's matrices, in the order of Model::Matrices.
enum FalconMatrix {
  kFalconQkv,     // [q_dim + 2*kv_dim, hidden]: Q over K over V
  kFalconOutput,  // [hidden, q_dim]
  kFalconUp,      // [ffn, hidden]
  kFalconDown,    // [hidden, ffn]
};

// f32 [1, n]. Biases of matrices have no buffer where the model has none.
struct FalconLayer {
  Tensor attention_norm, attention_norm_bias;  // [1, hidden]
  Tensor ffn_norm, ffn_norm_bias;              // [1, hidden]; the same as attention's in small models
  QkvVectors qkv;
  Tensor output_bias, up_bias, down_bias;
  std::array<std::shared_ptr<const Weights>, 4> matrices;
};

struct FalconWeights {
  TokenTables tables;
  std::vector<FalconLayer> layers;
  Tensor output_norm, output_norm_bias;  // f32 [1, hidden]
  Tensor rotation;                       // f32 [context_length, head_dim]
};

// Slots of the sections' scratch.
enum FalconSlot { kFalconNormed, kFalconProducts, kFalconFfn };

class FalconModel final : public Model {
 public:
  FalconModel(ModelConfig config, std::shared_ptr<Device> device, FalconWeights weights)
      : config_(std::move(config)),
        device_(std::move(device)),
        weights_(std::move(weights)),
        shapes_(AttentionShapes(config_, *device_)) {}
  const ModelConfig& config() const override { return config_; }
  const AttentionShape& attention(int64_t layer) const override { return shapes_[layer]; }
  LayerMatrices Matrices(int64_t layer) const override { return weights_.layers[layer].matrices; }
  std::vector<std::shared_ptr<const Weights>> Tables() const override { return weights_.tables.All(); }

  absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const override {
    return device_->Embed(rows.stream, *weights_.tables.embedding, {ids.begin(), ids.end()}, false, x);
  }

  absl::Status Project(const SectionRows& rows, int64_t index, const ConstTensor& x,
                       const Projection& to) const override {
    const FalconLayer& layer = weights_.layers[index];
    const auto norm = [&](const Tensor& out) {
      return device_->LayerNorm(rows.stream, x, layer.attention_norm, layer.attention_norm_bias, config_.norm_eps, out);
    };
    return Qkv(rows, index).Project(norm, to);
  }

  absl::Status Recompute(const SectionRows& rows, int64_t index, const ConstTensor& normed,
                         const BufferRef& kv) const override {
    return Qkv(rows, index).Recompute(normed, kv);
  }

  // x += attended * Wo + bo + gelu(norm(x) * Wup + bup) * Wdown + bdown: the norm is of x before attention.
  absl::Status Finish(const SectionRows& rows, int64_t index, const ConstTensor& attended,
                      const MutTensor& x) const override {
    const FalconLayer& layer = weights_.layers[index];
    const auto add = [&](const Tensor& bias) {
      return LinearOptions{.accumulate = true, .batch_invariant = rows.batch_invariant, .bias = bias};
    };
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                              rows.scratch.Get(kFalconNormed, attended.dtype, x.rows, config_.hidden));
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor ffn, rows.scratch.Get(kFalconFfn, attended.dtype, x.rows, config_.ffn));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->LayerNorm(rows.stream, x, layer.ffn_norm, layer.ffn_norm_bias, config_.norm_eps, normed));
    RUNAHEAD_RETURN_IF_ERROR(device_->Linear(
        rows.stream, normed, rows.Matrix(layer.matrices, kFalconUp),
        {.batch_invariant = rows.batch_invariant, .bias = layer.up_bias, .activation = Activation::kGelu}, ffn));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->Linear(rows.stream, attended, rows.Matrix(layer.matrices, kFalconOutput), add(layer.output_bias), x));
    return device_->Linear(rows.stream, ffn, rows.Matrix(layer.matrices, kFalconDown), add(layer.down_bias), x);
  }

  // norm(x) * Whead.
  absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const override {
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                              rows.scratch.Get(kFalconNormed, device_->invariant_dtype(), x.rows, config_.hidden));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->LayerNorm(rows.stream, x, weights_.output_norm, weights_.output_norm_bias, config_.norm_eps, normed));
    return device_->Linear(rows.stream, normed, weights_.tables.head, {.batch_invariant = true}, logits);
  }

 private:
  RotaryQkv Qkv(const SectionRows& rows, int64_t index) const {
    const FalconLayer& layer = weights_.layers[index];
    return {.device = *device_,
            .rows = rows,
            .shape = shapes_[index],
            .matrix = rows.Matrix(layer.matrices, kFalconQkv),
            .vectors = layer.qkv,
            .rotation = weights_.rotation,
            .norm_eps = config_.norm_eps,
            .slots = {kFalconNormed, kFalconProducts}};
  }

  const ModelConfig config_;
  const std::shared_ptr<Device> device_;
  const FalconWeights weights_;
  const std::vector<AttentionShape> shapes_;  // by layer
};

// Where in the stored matrix of Q, K and V the rows of Q, then of K, then of V lie: ranges of (first row, rows). GGUF
// has them in this order; folders have a group for each KV head, its queries, its key and its value.
std::vector<std::pair<int64_t, int64_t>> QkvRows(const ModelConfig& config, ModelFile::Container container) {
  if (container == ModelFile::Container::kGguf) return {{0, config.q_dim() + 2 * config.kv_dim()}};
  const int64_t queries = config.heads / config.kv_heads * config.head_dim, group = queries + 2 * config.head_dim;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t head = 0; head < config.kv_heads; ++head) ranges.emplace_back(head * group, queries);
  for (const int64_t behind : {queries, queries + config.head_dim}) {
    for (int64_t head = 0; head < config.kv_heads; ++head) ranges.emplace_back(head * group + behind, config.head_dim);
  }
  return ranges;
}

absl::Status LoadFalconQkv(const TensorLoader& loader, const ModelConfig& config, const std::string& prefix,
                           FalconLayer& layer) {
  const int64_t all = config.q_dim() + 2 * config.kv_dim();
  const auto ranges = QkvRows(config, loader.file().container());
  WeightSource source;
  for (const auto& [first, count] : ranges) {
    RUNAHEAD_RETURN_IF_ERROR(loader.AppendRows(prefix + "attn_qkv.weight", all, config.hidden, first, count, source));
  }
  source.cuts = {config.q_dim()};  // K and V alone
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kFalconQkv], loader.LoadForRecompute(source));
  if (!loader.file().FindTensor(prefix + "attn_qkv.bias").ok()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<float> stored, loader.Floats({prefix + "attn_qkv.bias", all}));
  std::vector<float> bias;
  for (const auto& [first, count] : ranges) {
    bias.insert(bias.end(), stored.begin() + first, stored.begin() + first + count);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(layer.qkv.bias, loader.Upload(bias, 1));
  return absl::OkStatus();
}

absl::Status LoadFalconLayer(const TensorLoader& loader, const ModelConfig& config, int64_t index, FalconLayer& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t hidden = config.hidden, ffn = config.ffn;
  RUNAHEAD_RETURN_IF_ERROR(LoadFalconQkv(loader, config, prefix, layer));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kFalconOutput],
                            loader.Matrix(prefix + "attn_output.weight", hidden, config.q_dim()));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kFalconUp], loader.Matrix(prefix + "ffn_up.weight", ffn, hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kFalconDown], loader.Matrix(prefix + "ffn_down.weight", hidden, ffn));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.output_bias, loader.VectorOrNone({{prefix + "attn_output.bias", hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.up_bias, loader.VectorOrNone({{prefix + "ffn_up.bias", ffn}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.down_bias, loader.VectorOrNone({{prefix + "ffn_down.bias", hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.ffn_norm, loader.Vector({{prefix + "attn_norm.weight", hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.ffn_norm_bias, loader.Vector({{prefix + "attn_norm.bias", hidden}}));
  layer.attention_norm = layer.ffn_norm;
  layer.attention_norm_bias = layer.ffn_norm_bias;
  if (!loader.file().FindTensor(prefix + "attn_norm_2.weight").ok()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(layer.attention_norm, loader.Vector({{prefix + "attn_norm_2.weight", hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.attention_norm_bias, loader.Vector({{prefix + "attn_norm_2.bias", hidden}}));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadFalconConfig(const ModelFile& file) {
  const ConfigKeys keys(file, "falcon");
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, keys.Common());
  RUNAHEAD_RETURN_IF_ERROR(keys.ReadHeads(config));
  if (config.q_dim() != config.hidden || config.rotated != config.head_dim) {
    return keys.Refuse("attention.head_count", "the heads do not share the hidden size, or are not rotated whole");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.norm_eps, keys.NotNegative("attention.layer_norm_epsilon"));
  RUNAHEAD_ASSIGN_OR_RETURN(const bool alibi, keys.BoolOr("alibi", false));
  if (alibi) return keys.Refuse("alibi", "positions by ALiBi are not supported");
  RUNAHEAD_ASSIGN_OR_RETURN(const bool newer, keys.BoolOr("new_decoder_architecture", false));
  RUNAHEAD_ASSIGN_OR_RETURN(const bool parallel, keys.BoolOr("parallel_attn", true));
  if (!parallel && !newer) return keys.Refuse("parallel_attn", "an MLP that follows attention is not supported");
  RUNAHEAD_ASSIGN_OR_RETURN(config.rope_base, keys.RopeBase(10000));
  RUNAHEAD_RETURN_IF_ERROR(ReadRotary(keys, config.rope_base, config.rotated, config.context_length).status());
  return config;
}

absl::StatusOr<std::shared_ptr<const Model>> LoadFalcon(const TensorLoader& loader, ModelConfig config,
                                                        const std::function<void(int, int)>& progress) {
  RUNAHEAD_ASSIGN_OR_RETURN(const Rotary rotary, ReadRotary(ConfigKeys(loader.file(), "falcon"), config.rope_base,
                                                            config.rotated, config.context_length));
  FalconWeights weights;
  RUNAHEAD_ASSIGN_OR_RETURN(weights.tables, LoadTokenTables(loader, config));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm, loader.Vector({{"output_norm.weight", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm_bias, loader.Vector({{"output_norm.bias", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.rotation, loader.UploadRotation(rotary, config.context_length));
  weights.layers.resize(config.layers);
  RUNAHEAD_RETURN_IF_ERROR(LoadLayers(
      config.layers, [&](int64_t index) { return LoadFalconLayer(loader, config, index, weights.layers[index]); },
      progress));
  if (loader.only_checks()) return nullptr;
  return std::make_shared<const FalconModel>(std::move(config), loader.device(), std::move(weights));
}

}  // namespace runahead
