#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/llama.h"
#include "worker/model/llama_config.h"
#include "worker/model/tensor_loader.h"

namespace runahead {
namespace {

absl::Status LoadGateUp(const TensorLoader& loader, const LlamaKind& kind, const ModelConfig& config,
                        const std::string& prefix, LlamaLayer& layer) {
  using Names = std::vector<std::pair<const char*, int64_t>>;  // with how many rows each has
  const Names names =
      kind.fused ? Names{{"ffn_up", 2 * config.ffn}} : Names{{"ffn_gate", config.ffn}, {"ffn_up", config.ffn}};
  WeightSource matrix;
  std::vector<TensorLoader::VectorPart> biases;
  for (const auto& [name, rows] : names) {
    RUNAHEAD_RETURN_IF_ERROR(loader.Append(absl::StrCat(prefix, name, ".weight"), rows, config.hidden, matrix));
    biases.push_back({absl::StrCat(prefix, name, ".bias"), rows});
  }
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaGateUp], loader.Load(matrix));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.gate_up_bias, loader.VectorOrNone(biases));
  return absl::OkStatus();
}

absl::Status LoadLayer(const TensorLoader& loader, const LlamaKind& kind, const ModelConfig& config, int64_t index,
                       LlamaLayer& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t hidden = config.hidden, ffn = config.ffn;
  RUNAHEAD_ASSIGN_OR_RETURN(
      LoadedQkv qkv, LoadQkv(loader, config, prefix,
                             {.permuted = kind.permuted && loader.file().container() == ModelFile::Container::kGguf,
                              .needs_bias = kind.qkv_bias,
                              .head_norm = kind.head_norm,
                              .fused = kind.fused}));
  layer.matrices[kLlamaQkv] = std::move(qkv.matrix);
  layer.qkv = std::move(qkv.vectors);
  RUNAHEAD_RETURN_IF_ERROR(LoadGateUp(loader, kind, config, prefix, layer));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaOutput],
                            loader.Matrix(prefix + "attn_output.weight", hidden, config.q_dim()));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaDown], loader.Matrix(prefix + "ffn_down.weight", hidden, ffn));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.attention_norm, loader.Vector({{prefix + "attn_norm.weight", hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.ffn_norm, loader.Vector({{prefix + "ffn_norm.weight", hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.output_bias, loader.VectorOrNone({{prefix + "attn_output.bias", hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.down_bias, loader.VectorOrNone({{prefix + "ffn_down.bias", hidden}}));
  return absl::OkStatus();
}

// Everything that is not a layer.
absl::Status LoadEnds(const TensorLoader& loader, const ModelConfig& config, LlamaWeights& weights) {
  RUNAHEAD_ASSIGN_OR_RETURN(weights.tables, LoadTokenTables(loader, config));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm, loader.Vector({{"output_norm.weight", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(const Rotary rotary, LlamaRotary(loader.file(), config));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.rotation, loader.UploadRotation(rotary, config.context_length));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaWeights> LoadLlamaWeights(const TensorLoader& loader, const ModelConfig& config,
                                              const std::function<void(int, int)>& progress) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string architecture, loader.file().GetString("general.architecture"));
  const LlamaKind& kind = *LlamaKindOf(architecture);
  LlamaWeights weights;
  weights.layers.resize(config.layers);
  RUNAHEAD_RETURN_IF_ERROR(LoadEnds(loader, config, weights));
  RUNAHEAD_RETURN_IF_ERROR(LoadLayers(
      config.layers, [&](int64_t index) { return LoadLayer(loader, kind, config, index, weights.layers[index]); },
      progress));
  return weights;
}

}  // namespace runahead
