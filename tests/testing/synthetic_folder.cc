#include "tests/testing/synthetic_folder.h"

#include <algorithm>
#include <cstring>
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

using Replacements = std::vector<std::pair<std::string, std::string>>;

Replacements NamesOf(const ModelFile& from, const std::string& architecture) {
  if (architecture == "opt") {
    return {{"blk.", "layers."},
            {"token_embd", "embed_tokens"},
            {"position_embd", "embed_positions"},
            {"output_norm", "final_layer_norm"},
            {"attn_norm", "self_attn_layer_norm"},
            {"attn_output", "self_attn.out_proj"},
            {"attn_q.", "self_attn.q_proj."},
            {"attn_k.", "self_attn.k_proj."},
            {"attn_v.", "self_attn.v_proj."},
            {"ffn_norm", "final_layer_norm"},
            {"ffn_up", "fc1"},
            {"ffn_down", "fc2"}};
  }
  if (architecture == "falcon") {
    const bool two = from.FindTensor("blk.0.attn_norm_2.weight").ok();
    return {{"blk.", "h."},
            {"token_embd", "word_embeddings"},
            {"output_norm", "ln_f"},
            {"attn_norm_2", "ln_attn"},
            {"attn_norm", two ? "ln_mlp" : "input_layernorm"},
            {"attn_qkv", "self_attention.query_key_value"},
            {"attn_output", "self_attention.dense"},
            {"ffn_up", "mlp.dense_h_to_4h"},
            {"ffn_down", "mlp.dense_4h_to_h"}};
  }
  const bool gemma = absl::StartsWith(architecture, "gemma"), starcoder = architecture == "starcoder2";
  const char* up = architecture == "phi3" ? "mlp.gate_up_proj" : starcoder ? "mlp.c_fc" : "mlp.up_proj";
  return {{"blk.", "layers."},
          {"token_embd", "embed_tokens"},
          {"output_norm", "norm"},
          {"attn_q_norm", "self_attn.q_norm"},
          {"attn_k_norm", "self_attn.k_norm"},
          {"attn_norm", "input_layernorm"},
          {"attn_output", "self_attn.o_proj"},
          {"attn_qkv", "self_attn.qkv_proj"},
          {"attn_q.", "self_attn.q_proj."},
          {"attn_k.", "self_attn.k_proj."},
          {"attn_v.", "self_attn.v_proj."},
          {"post_attention_norm", "post_attention_layernorm"},
          {"post_ffw_norm", "post_feedforward_layernorm"},
          {"ffn_norm", gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm"},
          {"ffn_gate", "mlp.gate_proj"},
          {"ffn_up", up},
          {"ffn_down", starcoder ? "mlp.c_proj" : "mlp.down_proj"}};
}

std::string StoredName(const std::string& name, const std::string& architecture, const Replacements& names) {
  if (name == "output.weight") return "lm_head.weight";
  const char* prefix = architecture == "opt" ? "model.decoder." : architecture == "falcon" ? "transformer." : "model.";
  return prefix + absl::StrReplaceAll(name, names);
}

// The keys of a GGUF file as config.json's.
class ConfigWriter {
 public:
  ConfigWriter(const ModelFile& from, std::string architecture) : from_(from), prefix_(std::move(architecture) + ".") {}

  std::string Text() const { return text_ + "}"; }
  bool Has(const std::string& key) const { return from_.Has(prefix_ + key); }
  int64_t Number(const std::string& key) const { return static_cast<int64_t>(*from_.GetUint(prefix_ + key)); }

  void Write(const std::string& name, const std::string& json) {
    absl::StrAppend(&text_, text_.empty() ? "{" : ",", "\"", name, "\":", json);
  }
  void Size(const std::string& name, const std::string& key) { Write(name, absl::StrCat(Number(key))); }
  void Real(const std::string& name, const std::string& key) { Write(name, RealOf(key)); }
  std::string RealOf(const std::string& key) const { return absl::StrFormat("%.17g", *from_.GetFloat(prefix_ + key)); }

 private:
  const ModelFile& from_;
  const std::string prefix_;
  std::string text_;
};

int64_t HeadDimOf(const ConfigWriter& config) {
  return config.Has("attention.key_length") ? config.Number("attention.key_length")
                                            : config.Number("embedding_length") / config.Number("attention.head_count");
}

int64_t KvHeadsOf(const ConfigWriter& config) {
  return config.Number(config.Has("attention.head_count_kv") ? "attention.head_count_kv" : "attention.head_count");
}

void WriteScaling(ConfigWriter& config, const ModelFile& from, const std::string& architecture) {
  config.Real("rope_theta", "rope.freq_base");
  if (!config.Has("rope.scaling.type")) return;
  std::string scaling = absl::StrCat(R"({"rope_type":")", *from.GetString(architecture + ".rope.scaling.type"),
                                     R"(","factor":)", config.RealOf("rope.scaling.factor"));
  if (config.Has("rope.scaling.original_context_length")) {
    absl::StrAppend(&scaling, R"(,"original_max_position_embeddings":)",
                    config.Number("rope.scaling.original_context_length"));
  }
  config.Write("rope_scaling", scaling + "}");
}

// Of families whose configuration is Llama's.
void WriteDecoderConfig(ConfigWriter& config, const std::string& architecture) {
  const bool gemma = absl::StartsWith(architecture, "gemma"), starcoder = architecture == "starcoder2";
  config.Write("num_key_value_heads", absl::StrCat(KvHeadsOf(config)));
  config.Write("head_dim", absl::StrCat(HeadDimOf(config)));
  config.Write(gemma ? "hidden_activation" : "hidden_act", gemma || starcoder ? "\"gelu_pytorch_tanh\"" : "\"silu\"");
  config.Real(starcoder ? "norm_epsilon" : "rms_norm_eps",
              starcoder ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon");
  const int64_t rotated = config.Number("rope.dimension_count");
  if (rotated != HeadDimOf(config)) {
    config.Write("partial_rotary_factor",
                 absl::StrFormat("%.17g", static_cast<double>(rotated) / static_cast<double>(HeadDimOf(config))));
  }
  const bool window = config.Has("attention.sliding_window");
  if (window) config.Size("sliding_window", "attention.sliding_window");
  if (window && absl::StartsWith(architecture, "qwen")) {
    constexpr char kFrom[] = "attention.sliding_window_from_layer";
    config.Write("use_sliding_window", "true");
    config.Write("max_window_layers", absl::StrCat(config.Has(kFrom) ? config.Number(kFrom) : 0));
  }
  if (!gemma) return;
  config.Write("query_pre_attn_scalar", absl::StrCat(HeadDimOf(config)));
  if (!window) config.Write("sliding_window", "null");
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (config.Has(key)) config.Real(key, key);
  }
}

void WriteFalconConfig(ConfigWriter& config, const ModelFile& from) {
  const int64_t kv_heads = KvHeadsOf(config);
  config.Write("new_decoder_architecture", kv_heads > 1 ? "true" : "false");
  if (kv_heads > 1) config.Write("num_kv_heads", absl::StrCat(kv_heads));
  config.Size("ffn_hidden_size", "feed_forward_length");
  config.Real("layer_norm_epsilon", "attention.layer_norm_epsilon");
  config.Write("bias", from.FindTensor("blk.0.attn_qkv.bias").ok() ? "true" : "false");
}

std::string Config(const ModelFile& from, const std::string& architecture) {
  ConfigWriter config(from, architecture);
  const bool mistral = architecture == "llama" && config.Has("attention.sliding_window");
  const std::string type = mistral ? "mistral" : architecture == "gemma3" ? "gemma3_text" : architecture;
  config.Write("model_type", absl::StrCat("\"", type, "\""));
  config.Write("bos_token_id", "1");
  config.Write("eos_token_id", "0");
  config.Write("tie_word_embeddings", from.FindTensor("output.weight").ok() ? "false" : "true");
  config.Size("num_hidden_layers", "block_count");
  config.Size("hidden_size", "embedding_length");
  config.Size("num_attention_heads", "attention.head_count");
  config.Size("max_position_embeddings", "context_length");
  config.Size(architecture == "opt" ? "ffn_dim" : "intermediate_size", "feed_forward_length");
  if (architecture == "opt") return config.Text();
  WriteScaling(config, from, architecture);
  if (architecture == "falcon") {
    WriteFalconConfig(config, from);
  } else {
    WriteDecoderConfig(config, architecture);
  }
  return config.Text();
}

// Where in a folder's tensor the rows of a GGUF file's lie.
std::vector<int64_t> RowsOf(const ConfigWriter& config, const std::string& architecture, const std::string& name,
                            int64_t rows) {
  const int64_t head_dim = architecture == "opt" ? 1 : HeadDimOf(config);
  std::vector<int64_t> to(rows);
  for (int64_t row = 0; row < rows; ++row) {
    to[row] = row;
    const int64_t head = row / head_dim, in_head = row % head_dim;
    const bool q_or_k = absl::StrContains(name, "attn_q.") || absl::StrContains(name, "attn_k.");
    if (architecture == "llama" && q_or_k) {  // two that are rotated together lie half a head apart
      to[row] = head * head_dim + in_head / 2 + in_head % 2 * (head_dim / 2);
    }
    if (architecture != "falcon" || !absl::StrContains(name, "attn_qkv"))
      continue;  // a group is its queries, a key, a value
    const int64_t heads = config.Number("attention.head_count"), kv_heads = KvHeadsOf(config);
    const int64_t queries = heads / kv_heads, group = queries + 2;
    const int64_t place = head < heads ? head / queries * group + head % queries
                                       : (head - heads) % kv_heads * group + queries + (head - heads) / kv_heads;
    to[row] = place * head_dim + in_head;
  }
  return to;
}

std::vector<float> Reordered(const std::vector<float>& values, const std::vector<int64_t>& to) {
  std::vector<float> out(values.size());
  const size_t columns = values.size() / to.size();
  for (size_t row = 0; row < to.size(); ++row) {
    std::copy_n(&values[row * columns], columns, &out[to[row] * columns]);
  }
  return out;
}

}  // namespace

void WriteSyntheticFolder(const ModelFile& from, const std::string& path, const SyntheticFolder& options) {
  const std::string architecture = *from.GetString("general.architecture");
  const Replacements names = NamesOf(from, architecture);
  FolderBuilder folder(path);
  folder.Text("config.json", Config(from, architecture));
  folder.Text("generation_config.json", R"({"eos_token_id":[2,0]})");
  for (const FileTensor& tensor : from.tensors()) {
    RUNAHEAD_CHECK(tensor.type == WeightType::kF32 && tensor.name != "rope_freqs.weight");
    std::vector<float> values(tensor.data.size() / sizeof(float));
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    const int64_t rows = tensor.dims.size() == 1 ? tensor.columns() : tensor.rows();
    values = Reordered(values, RowsOf(ConfigWriter(from, architecture), architecture, tensor.name, rows));
    if (absl::StartsWith(architecture, "gemma") && absl::StrContains(tensor.name, "norm")) {
      for (float& value : values) value -= 1;
    }
    folder.Tensor(StoredName(tensor.name, architecture, names), BlockOf(options.type).name,
                  {tensor.dims.rbegin(), tensor.dims.rend()}, Quantize(options.type, values));
  }
  folder.WriteTensors(options.shards, options.spaces);
}

}  // namespace runahead
