#include "worker/model/starcoder2.h"

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
#include "worker/model/windows.h"

namespace runahead {
namespace {

// A layer's matrices, in the order of Model::Matrices.
enum Starcoder2Matrix {
  kStarcoder2Qkv,     // [q_dim + 2*kv_dim, hidden]: Q over K over V
  kStarcoder2Output,  // [hidden, q_dim]
  kStarcoder2Up,      // [ffn, hidden]
  kStarcoder2Down,    // [hidden, ffn]
};

struct Starcoder2Layer {
  Tensor attention_norm, attention_norm_bias;  // f32 [1, hidden]
  QkvVectors qkv;                              // the bias
  Tensor output_bias;                          // f32 [1, hidden]
  Tensor ffn_norm, ffn_norm_bias;              // f32 [1, hidden]
  Tensor up_bias;                              // f32 [1, ffn]
  Tensor down_bias;                            // f32 [1, hidden]
  std::array<std::shared_ptr<const Weights>, 4> matrices;
};

struct Starcoder2Weights {
  TokenTables tables;
  std::vector<Starcoder2Layer> layers;
  Tensor output_norm, output_norm_bias;  // f32 [1, hidden]
  Tensor rotation;                       // f32 [context_length, head_dim]
};

// Slots of the sections' scratch.
enum Starcoder2Slot { kStarcoder2Normed, kStarcoder2Products, kStarcoder2Ffn };

class Starcoder2Model final : public Model {
 public:
  Starcoder2Model(ModelConfig config, std::shared_ptr<Device> device, Starcoder2Weights weights)
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
    const Starcoder2Layer& layer = weights_.layers[index];
    const auto norm = [&](const Tensor& out) {
      return device_->LayerNorm(rows.stream, x, layer.attention_norm, layer.attention_norm_bias, config_.norm_eps, out);
    };
    return Qkv(rows, index).Project(norm, to);
  }

  absl::Status Recompute(const SectionRows& rows, int64_t index, const ConstTensor& normed,
                         const BufferRef& kv) const override {
    return Qkv(rows, index).Recompute(normed, kv);
  }

  // x += attended * Wo + bo;  x += gelu(norm(x) * Wup + bup) * Wdown + bdown, with GELU by tanh.
  absl::Status Finish(const SectionRows& rows, int64_t index, const ConstTensor& attended,
                      const MutTensor& x) const override {
    const Starcoder2Layer& layer = weights_.layers[index];
    const auto add = [&](const Tensor& bias) {
      return LinearOptions{.accumulate = true, .batch_invariant = rows.batch_invariant, .bias = bias};
    };
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                              rows.scratch.Get(kStarcoder2Normed, attended.dtype, x.rows, config_.hidden));
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor ffn, rows.scratch.Get(kStarcoder2Ffn, attended.dtype, x.rows, config_.ffn));
    RUNAHEAD_RETURN_IF_ERROR(device_->Linear(rows.stream, attended, rows.Matrix(layer.matrices, kStarcoder2Output),
                                             add(layer.output_bias), x));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->LayerNorm(rows.stream, x, layer.ffn_norm, layer.ffn_norm_bias, config_.norm_eps, normed));
    RUNAHEAD_RETURN_IF_ERROR(device_->Linear(
        rows.stream, normed, rows.Matrix(layer.matrices, kStarcoder2Up),
        {.batch_invariant = rows.batch_invariant, .bias = layer.up_bias, .activation = Activation::kGeluTanh}, ffn));
    return device_->Linear(rows.stream, ffn, rows.Matrix(layer.matrices, kStarcoder2Down), add(layer.down_bias), x);
  }

  // norm(x) * Whead.
  absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const override {
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                              rows.scratch.Get(kStarcoder2Normed, device_->invariant_dtype(), x.rows, config_.hidden));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->LayerNorm(rows.stream, x, weights_.output_norm, weights_.output_norm_bias, config_.norm_eps, normed));
    return device_->Linear(rows.stream, normed, weights_.tables.head, {.batch_invariant = true}, logits);
  }

 private:
  RotaryQkv Qkv(const SectionRows& rows, int64_t index) const {
    const Starcoder2Layer& layer = weights_.layers[index];
    return {.device = *device_,
            .rows = rows,
            .shape = shapes_[index],
            .matrix = rows.Matrix(layer.matrices, kStarcoder2Qkv),
            .vectors = layer.qkv,
            .rotation = weights_.rotation,
            .norm_eps = config_.norm_eps,
            .slots = {kStarcoder2Normed, kStarcoder2Products}};
  }

  const ModelConfig config_;
  const std::shared_ptr<Device> device_;
  const Starcoder2Weights weights_;
  const std::vector<AttentionShape> shapes_;  // by layer
};

absl::Status LoadStarcoder2Layer(const TensorLoader& loader, const ModelConfig& config, int64_t index,
                                 Starcoder2Layer& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t hidden = config.hidden, ffn = config.ffn;
  RUNAHEAD_ASSIGN_OR_RETURN(LoadedQkv qkv, LoadQkv(loader, config, prefix, {.needs_bias = true}));
  layer.matrices[kStarcoder2Qkv] = std::move(qkv.matrix);
  layer.qkv = std::move(qkv.vectors);
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kStarcoder2Output],
                            loader.Matrix(prefix + "attn_output.weight", hidden, config.q_dim()));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kStarcoder2Up], loader.Matrix(prefix + "ffn_up.weight", ffn, hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kStarcoder2Down], loader.Matrix(prefix + "ffn_down.weight", hidden, ffn));
  const struct {
    const char* name;
    int64_t size;
    Tensor& to;
  } vectors[] = {
      {"attn_norm.weight", hidden, layer.attention_norm}, {"attn_norm.bias", hidden, layer.attention_norm_bias},
      {"attn_output.bias", hidden, layer.output_bias},    {"ffn_norm.weight", hidden, layer.ffn_norm},
      {"ffn_norm.bias", hidden, layer.ffn_norm_bias},     {"ffn_up.bias", ffn, layer.up_bias},
      {"ffn_down.bias", hidden, layer.down_bias}};
  for (const auto& [name, size, to] : vectors) {
    RUNAHEAD_ASSIGN_OR_RETURN(to, loader.Vector({{prefix + name, size}}));
  }
  return absl::OkStatus();
}

absl::StatusOr<Rotary> Starcoder2Rotary(const ConfigKeys& keys, const ModelConfig& config) {
  return ReadRotary(keys, config.rope_base, config.rotated, config.context_length);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadStarcoder2Config(const ModelFile& file) {
  const ConfigKeys keys(file, "starcoder2");
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, keys.Common());
  RUNAHEAD_RETURN_IF_ERROR(keys.ReadHeads(config));
  if (config.rotated != config.head_dim) {
    return keys.Refuse("rope.dimension_count", "heads that are rotated in part are not supported in this family");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.norm_eps, keys.NotNegative("attention.layer_norm_epsilon"));
  RUNAHEAD_ASSIGN_OR_RETURN(config.rope_base, keys.RopeBase(10000));
  RUNAHEAD_RETURN_IF_ERROR(Starcoder2Rotary(keys, config).status());
  RUNAHEAD_ASSIGN_OR_RETURN(config.windows, ReadWindows(keys, config, 0));
  return config;
}

absl::StatusOr<std::shared_ptr<const Model>> LoadStarcoder2(const TensorLoader& loader, ModelConfig config,
                                                            const std::function<void(int, int)>& progress) {
  RUNAHEAD_ASSIGN_OR_RETURN(const Rotary rotary, Starcoder2Rotary(ConfigKeys(loader.file(), "starcoder2"), config));
  Starcoder2Weights weights;
  RUNAHEAD_ASSIGN_OR_RETURN(weights.tables, LoadTokenTables(loader, config));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm, loader.Vector({{"output_norm.weight", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm_bias, loader.Vector({{"output_norm.bias", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.rotation, loader.UploadRotation(rotary, config.context_length));
  weights.layers.resize(config.layers);
  RUNAHEAD_RETURN_IF_ERROR(LoadLayers(
      config.layers, [&](int64_t index) { return LoadStarcoder2Layer(loader, config, index, weights.layers[index]); },
      progress));
  if (loader.only_checks()) return nullptr;
  return std::make_shared<const Starcoder2Model>(std::move(config), loader.device(), std::move(weights));
}

}  // namespace runahead
