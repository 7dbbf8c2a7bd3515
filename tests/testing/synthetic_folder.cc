#include "tests/testing/synthetic_folder.h"

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"
#include "tests/testing/folder_builder.h"
#include "tests/testing/quantize.h"

namespace runahead {
namespace {

std::string StoredName(const std::string& name) {
  if (name == "output.weight") return "lm_head.weight";
  return absl::StrCat("model.", absl::StrReplaceAll(name, {{"blk.", "layers."},
                                                           {"token_embd", "embed_tokens"},
                                                           {"output_norm", "norm"},
                                                           {"attn_q_norm", "self_attn.q_norm"},
                                                           {"attn_k_norm", "self_attn.k_norm"},
                                                           {"attn_norm", "input_layernorm"},
                                                           {"attn_output", "self_attn.o_proj"},
                                                           {"attn_q.", "self_attn.q_proj."},
                                                           {"attn_k.", "self_attn.k_proj."},
                                                           {"attn_v.", "self_attn.v_proj."},
                                                           {"ffn_norm", "post_attention_layernorm"},
                                                           {"ffn_gate", "mlp.gate_proj"},
                                                           {"ffn_up", "mlp.up_proj"},
                                                           {"ffn_down", "mlp.down_proj"}}));
}

// Of a head's rows in GGUF's order, two that are rotated together beside each other: all first of them, then the
// others.
std::vector<float> Unpermuted(const std::vector<float>& rows, int64_t columns, int64_t head_dim) {
  std::vector<float> out(rows.size());
  const int64_t count = static_cast<int64_t>(rows.size()) / columns;
  for (int64_t row = 0; row < count; ++row) {
    const int64_t head = row / head_dim, in_head = row % head_dim;
    const int64_t to = head * head_dim + in_head / 2 + in_head % 2 * (head_dim / 2);
    std::memcpy(&out[to * columns], &rows[row * columns], columns * sizeof(float));
  }
  return out;
}

std::string Config(const ModelFile& from, const std::string& architecture, int64_t head_dim) {
  const auto number = [&](const char* key) { return *from.GetUint(absl::StrCat(architecture, ".", key)); };
  const auto real = [&](const char* key) { return *from.GetFloat(absl::StrCat(architecture, ".", key)); };
  return absl::StrFormat(
      R"({"model_type":"%s","hidden_act":"silu","num_hidden_layers":%d,"hidden_size":%d,"intermediate_size":%d,)"
      R"("num_attention_heads":%d,"num_key_value_heads":%d,"head_dim":%d,"max_position_embeddings":%d,)"
      R"("rms_norm_eps":%.9g,"rope_theta":%.9g,"tie_word_embeddings":%s,"bos_token_id":1,"eos_token_id":0})",
      architecture, number("block_count"), number("embedding_length"), number("feed_forward_length"),
      number("attention.head_count"), number("attention.head_count_kv"), head_dim, number("context_length"),
      real("attention.layer_norm_rms_epsilon"), real("rope.freq_base"),
      from.FindTensor("output.weight").ok() ? "false" : "true");
}

}  // namespace

void WriteSyntheticFolder(const ModelFile& from, const std::string& path, const SyntheticFolder& options) {
  const std::string architecture = *from.GetString("general.architecture");
  const auto head_dim = static_cast<int64_t>(*from.GetUint(architecture + ".rope.dimension_count"));
  FolderBuilder folder(path);
  folder.Text("config.json", Config(from, architecture, head_dim));
  folder.Text("generation_config.json", R"({"eos_token_id":[2,0]})");
  for (const FileTensor& tensor : from.tensors()) {
    RUNAHEAD_CHECK(tensor.type == WeightType::kF32);
    std::vector<float> values(tensor.data.size() / sizeof(float));
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    const bool permuted = absl::StrContains(tensor.name, "attn_q.") || absl::StrContains(tensor.name, "attn_k.");
    const int64_t columns = tensor.dims.size() == 1 ? 1 : tensor.columns();
    if (permuted && architecture == "llama") values = Unpermuted(values, columns, head_dim);
    folder.Tensor(StoredName(tensor.name), BlockOf(options.type).name, {tensor.dims.rbegin(), tensor.dims.rend()},
                  Quantize(options.type, values));
  }
  folder.WriteTensors(options.shards, options.spaces);
}

}  // namespace runahead
