#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/llama.h"
#include "worker/model/llama_config.h"
#include "worker/model/tensor_loader.h"

namespace runahead {
namespace {

absl::Status LoadLayer(const TensorLoader& loader, const ModelConfig& config, int64_t index, LlamaLayer& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  WeightSource qkv, gate_up;
  RUNAHEAD_RETURN_IF_ERROR(
      loader.AppendUnpermuted(prefix + "attn_q.weight", config.heads, config.head_dim, config.hidden, qkv));
  RUNAHEAD_RETURN_IF_ERROR(
      loader.AppendUnpermuted(prefix + "attn_k.weight", config.kv_heads, config.head_dim, config.hidden, qkv));
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "attn_v.weight", config.kv_dim(), config.hidden, qkv));
  qkv.cuts = {config.heads * config.head_dim};  // K and V alone
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "ffn_gate.weight", config.ffn, config.hidden, gate_up));
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "ffn_up.weight", config.ffn, config.hidden, gate_up));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.attention_norm, loader.Vector({{prefix + "attn_norm.weight", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.ffn_norm, loader.Vector({{prefix + "ffn_norm.weight", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaQkv], loader.LoadForRecompute(qkv));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaOutput], loader.Matrix(prefix + "attn_output.weight", config.hidden,
                                                                        config.heads * config.head_dim));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaGateUp], loader.Load(gate_up));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaDown],
                            loader.Matrix(prefix + "ffn_down.weight", config.hidden, config.ffn));
  return absl::OkStatus();
}

// Everything that is not a layer.
absl::Status LoadEnds(const TensorLoader& loader, const ModelConfig& config, LlamaWeights& weights) {
  RUNAHEAD_ASSIGN_OR_RETURN(weights.embedding, loader.Table("token_embd.weight", config.vocab, config.hidden));
  weights.head = weights.embedding;
  if (loader.file().FindTensor("output.weight").ok()) {
    RUNAHEAD_ASSIGN_OR_RETURN(weights.head, loader.Table("output.weight", config.vocab, config.hidden));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm, loader.Vector({{"output_norm.weight", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<float> rotation, LlamaRotation(loader.file(), config));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.rotation, loader.Upload(rotation, config.context_length));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaWeights> LoadLlamaWeights(std::shared_ptr<const ModelFile> file, const ModelConfig& config,
                                              Device& device, unsigned uses,
                                              const std::function<void(int, int)>& progress) {
  const TensorLoader loader(std::move(file), device, uses);
  LlamaWeights weights;
  weights.layers.resize(config.layers);
  RUNAHEAD_RETURN_IF_ERROR(LoadEnds(loader, config, weights));
  RUNAHEAD_RETURN_IF_ERROR(LoadLayers(
      config.layers, [&](int64_t index) { return LoadLayer(loader, config, index, weights.layers[index]); }, progress));
  return weights;
}

}  // namespace runahead
