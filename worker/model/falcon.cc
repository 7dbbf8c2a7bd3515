#include "worker/model/falcon.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/config_keys.h"
#include "worker/model/layer_norm_model.h"
#include "worker/model/rotary.h"
#include "worker/model/tensor_loader.h"

namespace runahead {
namespace {

class FalconModel final : public LayerNormModel {
 public:
  using LayerNormModel::LayerNormModel;

  // x += attended * Wo + bo + gelu(norm(x) * Wup + bup) * Wdown + bdown: the norm is of x before attention.
  absl::Status Finish(const SectionRows& rows, int64_t layer, const ConstTensor& attended,
                      const MutTensor& x) const override {
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor up, Up(rows, layer, x, Activation::kGelu, attended.dtype));
    RUNAHEAD_RETURN_IF_ERROR(AddAttended(rows, layer, attended, x));
    return AddMlp(rows, layer, up, x);
  }
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
                           LayerNormLayer& layer) {
  const int64_t all = config.q_dim() + 2 * config.kv_dim();
  const auto ranges = QkvRows(config, loader.file().container());
  WeightSource source;
  for (const auto& [first, count] : ranges) {
    RUNAHEAD_RETURN_IF_ERROR(loader.AppendRows(prefix + "attn_qkv.weight", all, config.hidden, first, count, source));
  }
  source.cuts = {config.q_dim()};  // K and V alone
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLayerNormQkv], loader.LoadForRecompute(source));
  if (!loader.file().FindTensor(prefix + "attn_qkv.bias").ok()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<float> stored, loader.Floats({prefix + "attn_qkv.bias", all}));
  std::vector<float> bias;
  for (const auto& [first, count] : ranges) {
    bias.insert(bias.end(), stored.begin() + first, stored.begin() + first + count);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(layer.qkv.bias, loader.Upload(bias, 1));
  return absl::OkStatus();
}

absl::Status LoadFalconLayer(const TensorLoader& loader, const ModelConfig& config, int64_t index,
                             LayerNormLayer& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t hidden = config.hidden, ffn = config.ffn;
  RUNAHEAD_RETURN_IF_ERROR(LoadFalconQkv(loader, config, prefix, layer));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLayerNormOutput],
                            loader.Matrix(prefix + "attn_output.weight", hidden, config.q_dim()));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLayerNormUp], loader.Matrix(prefix + "ffn_up.weight", ffn, hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLayerNormDown], loader.Matrix(prefix + "ffn_down.weight", hidden, ffn));
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

absl::StatusOr<ModelConfig> ReadFalconConfig(const ConfigKeys& keys) {
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
  RUNAHEAD_ASSIGN_OR_RETURN(LayerNormWeights weights, LoadLayerNormEnds(loader, config, rotary));
  RUNAHEAD_RETURN_IF_ERROR(LoadLayers(
      config.layers, [&](int64_t index) { return LoadFalconLayer(loader, config, index, weights.layers[index]); },
      progress));
  if (loader.only_checks()) return nullptr;
  return std::make_shared<const FalconModel>(std::move(config), loader.device(), std::move(weights));
}

}  // namespace runahead
