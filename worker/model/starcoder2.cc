#include "worker/model/starcoder2.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/config_keys.h"
#include "worker/model/layer_norm_model.h"
#include "worker/model/rotary.h"
#include "worker/model/tensor_loader.h"
#include "worker/model/windows.h"

namespace runahead {
namespace {

class Starcoder2Model final : public LayerNormModel {
 public:
  using LayerNormModel::LayerNormModel;

  // x += attended * Wo + bo;  x += gelu(norm(x) * Wup + bup) * Wdown + bdown, with GELU by tanh.
  absl::Status Finish(const SectionRows& rows, int64_t layer, const ConstTensor& attended,
                      const MutTensor& x) const override {
    RUNAHEAD_RETURN_IF_ERROR(AddAttended(rows, layer, attended, x));
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor up, Up(rows, layer, x, Activation::kGeluTanh, attended.dtype));
    return AddMlp(rows, layer, up, x);
  }
};

absl::Status LoadStarcoder2Layer(const TensorLoader& loader, const ModelConfig& config, int64_t index,
                                 LayerNormLayer& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t hidden = config.hidden, ffn = config.ffn;
  RUNAHEAD_ASSIGN_OR_RETURN(LoadedQkv qkv, LoadQkv(loader, config, prefix, {.needs_bias = true}));
  layer.matrices[kLayerNormQkv] = std::move(qkv.matrix);
  layer.qkv = std::move(qkv.vectors);
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLayerNormOutput],
                            loader.Matrix(prefix + "attn_output.weight", hidden, config.q_dim()));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLayerNormUp], loader.Matrix(prefix + "ffn_up.weight", ffn, hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLayerNormDown], loader.Matrix(prefix + "ffn_down.weight", hidden, ffn));
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

absl::StatusOr<ModelConfig> ReadStarcoder2Config(const ConfigKeys& keys) {
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
  RUNAHEAD_ASSIGN_OR_RETURN(LayerNormWeights weights, LoadLayerNormEnds(loader, config, rotary));
  RUNAHEAD_RETURN_IF_ERROR(LoadLayers(
      config.layers, [&](int64_t index) { return LoadStarcoder2Layer(loader, config, index, weights.layers[index]); },
      progress));
  if (loader.only_checks()) return nullptr;
  return std::make_shared<const Starcoder2Model>(std::move(config), loader.device(), std::move(weights));
}

}  // namespace runahead
