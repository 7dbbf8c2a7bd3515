#include "worker/format/hf_config.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/format/config_object.h"
#include "worker/format/hf_rotary.h"
#include "worker/format/hf_unread_keys.h"
#include "worker/format/quoted.h"

namespace runahead {
namespace {

// A model_type of transformers, and what its class takes where config.json leaves a key out. 0: it must not, or, of
// head_dim: the heads share the hidden size.
struct HfKind {
  const char* model_type;
  const char* architecture;
  const char* activation;
  bool tied;
  uint64_t context = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double epsilon = 0;
  RotaryDefaults rotary = {.base = 1e4};
};
constexpr HfKind kKinds[] = {
    {.model_type = "llama",
     .architecture = "llama",
     .activation = "silu",
     .tied = false,
     .context = 2048,
     .epsilon = 1e-6},
    {.model_type = "mistral",
     .architecture = "llama",
     .activation = "silu",
     .tied = false,
     .context = 131072,
     .epsilon = 1e-6},
    {.model_type = "qwen2",
     .architecture = "qwen2",
     .activation = "silu",
     .tied = false,
     .context = 32768,
     .epsilon = 1e-6},
    {.model_type = "qwen3",
     .architecture = "qwen3",
     .activation = "silu",
     .tied = false,
     .context = 32768,
     .head_dim = 128,
     .epsilon = 1e-6},
    {.model_type = "phi3",
     .architecture = "phi3",
     .activation = "silu",
     .tied = false,
     .context = 4096,
     .epsilon = 1e-5},
    {.model_type = "gemma2",
     .architecture = "gemma2",
     .activation = "gelu_pytorch_tanh",
     .tied = true,
     .context = 8192,
     .head_dim = 256,
     .epsilon = 1e-6},
    {.model_type = "gemma3_text",
     .architecture = "gemma3",
     .activation = "gelu_pytorch_tanh",
     .tied = true,
     .context = 131072,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .epsilon = 1e-6,
     .rotary = {.base = 1e6, .local_base = 1e4}},
    {.model_type = "falcon",
     .architecture = "falcon",
     .activation = "gelu",
     .tied = true,
     .context = 2048,
     .epsilon = 1e-5},
    {.model_type = "opt", .architecture = "opt", .activation = "relu", .tied = true, .context = 2048},
    {.model_type = "starcoder2",
     .architecture = "starcoder2",
     .activation = "gelu_pytorch_tanh",
     .tied = true,
     .context = 4096,
     .heads = 24,
     .kv_heads = 2,
     .epsilon = 1e-5},
};

class HfTranslation {
 public:
  // `path` is the file's.
  HfTranslation(ConfigObject from, const HfKind& kind, const std::string& path, MetadataWriter& to)
      : from_(std::move(from)), kind_(kind), path_(path), prefix_(absl::StrCat(kind.architecture, ".")), to_(to) {}

  absl::StatusOr<HfModel> Run() {
    to_.String("general.architecture", kind_.architecture);
    HfModel model{.architecture = kind_.architecture};
    model.layers = static_cast<int64_t>(from_.Uint("num_hidden_layers"));
    model.tied = from_.BoolOr("tie_word_embeddings", kind_.tied);
    Put("block_count", static_cast<uint64_t>(model.layers));
    if (from_.Has("quantization_config")) {
      from_.Refuse("quantization_config",
                   "asks for weights that folders are not read with; GGUF files may be quantised");
    }
    // The classes of these have such keys, and others' do not read them.
    if ((Is("llama") || Is("qwen3")) && from_.BoolOr("attention_bias", false)) model.biases.push_back("self_attn.");
    if (Is("llama") && from_.BoolOr("mlp_bias", false)) model.biases.push_back("mlp.");
    if (Is("falcon") && from_.BoolOr("bias", false)) model.biases = {"self_attention.", "mlp."};
    const std::string family = kind_.model_type;
    if (family == "opt") {
      Opt();
    } else if (family == "falcon") {
      Falcon();
    } else {
      Decoder(model.layers);
    }
    if (!from_.status().ok()) return from_.status();
    model.unread_keys = UnreadHfKeysRemark(from_, path_);
    return model;
  }

 private:
  void Put(const char* key, uint64_t value) { to_.Uint(prefix_ + key, value); }
  void Put(const char* key, double value) { to_.Float(prefix_ + key, value); }
  uint64_t Size(const char* key, uint64_t otherwise) {
    return otherwise == 0 ? from_.Uint(key) : from_.UintOr(key, otherwise);
  }
  bool Is(const char* model_type) const { return std::string(kind_.model_type) == model_type; }

  void Activation(const char* key) {
    const std::string found = from_.TextOr(key, kind_.activation);
    if (found == kind_.activation) return;
    from_.Refuse(key, absl::StrCat("is ", Quoted(found), "; this family has ", Quoted(kind_.activation)));
  }
  // Refuses what the key says, where it is there and says otherwise.
  void Must(const char* key, bool value) {
    if (from_.BoolOr(key, value) != value) from_.Refuse(key, absl::StrCat("must be ", value ? "true" : "false"));
  }

  // Sizes that all have, but for `ffn`. The heads.
  uint64_t Sizes(const char* ffn) {
    Put("embedding_length", from_.Uint("hidden_size"));
    if (ffn != nullptr) Put("feed_forward_length", from_.Uint(ffn));
    Put("context_length", from_.UintOr("max_position_embeddings", kind_.context));
    const uint64_t heads = Size("num_attention_heads", kind_.heads);
    Put("attention.head_count", heads);
    return heads;
  }

  // Families whose configuration is Llama's, with more or less in it.
  void Decoder(int64_t layers) {
    const uint64_t heads = Sizes("intermediate_size");
    const bool gemma = from_.Has("hidden_activation");
    if (gemma) from_.PassOver("hidden_act");  // an older name, which transformers does not look at then
    Activation(gemma ? "hidden_activation" : "hidden_act");
    Put("attention.head_count_kv", KvHeads(heads));
    uint64_t head_dim = from_.UintOr("head_dim", kind_.head_dim);
    if (head_dim == 0) head_dim = heads == 0 ? 0 : from_.Uint("hidden_size") / heads;
    Put("attention.key_length", head_dim);
    Put("attention.value_length", head_dim);
    if (Is("starcoder2")) {
      Put("attention.layer_norm_epsilon", from_.FloatOr("norm_epsilon", kind_.epsilon));
      Must("use_bias", true);
    } else {
      Put("attention.layer_norm_rms_epsilon", from_.FloatOr("rms_norm_eps", kind_.epsilon));
    }
    if (Is("phi3") && from_.Has("rope_scaling")) {  // whatever it is called, it is longrope
      from_.Refuse("rope_scaling", "asks for longrope, which is not supported");
    }
    TranslateRotary(from_, prefix_, kind_.rotary, head_dim, to_);
    Windows(layers);
    if (Is("gemma2") || Is("gemma3_text")) Gemma();
  }

  // In Llama's class, and those made after it, as many as heads; in others the key is always there.
  uint64_t KvHeads(uint64_t heads) {
    constexpr char kKey[] = "num_key_value_heads";
    if (from_.Has(kKey)) return from_.Uint(kKey);
    if (from_.Says(kKey) || Is("llama") || Is("phi3")) return heads;
    return Size(kKey, kind_.kv_heads);
  }

  void Windows(int64_t layers) {
    constexpr char kKey[] = "sliding_window";
    const bool qwen = Is("qwen2") || Is("qwen3");
    if (Is("llama")) return;
    if (qwen && !from_.BoolOr("use_sliding_window", false)) {
      // They are there as a rule, and say nothing then.
      for (const char* key : {kKey, "max_window_layers", "layer_types"}) from_.PassOver(key);
      return;
    }
    constexpr uint64_t kWindow = 4096, kFirstWithWindow = 28;  // of those classes of transformers that have windows
    const uint64_t otherwise = from_.Says(kKey) || Is("phi3") || Is("starcoder2") ? 0 : kWindow;
    const uint64_t window = from_.UintOr(kKey, otherwise);
    const bool types = from_.Has("layer_types");
    const uint64_t from_layer = qwen ? from_.UintOr("max_window_layers", kFirstWithWindow) : 0;
    const uint64_t pattern = Is("gemma3_text") ? WindowPattern() : 0;
    if (window == 0) return;
    Put("attention.sliding_window", window);
    if (types) {
      LayerTypes(layers);
    } else if (qwen) {
      Put("attention.sliding_window_from_layer", from_layer);
    } else if (Is("gemma3_text")) {
      Put("attention.sliding_window_pattern", pattern);
    }
  }

  uint64_t WindowPattern() {
    const uint64_t older = from_.UintOr("_sliding_window_pattern", 6);
    return from_.UintOr("sliding_window_pattern", older);
  }

  void LayerTypes(int64_t layers) {
    constexpr char kKey[] = "layer_types";
    const JsonValue::Array* types = from_.Array(kKey);
    if (types == nullptr) return;
    std::vector<bool> local;
    for (const JsonValue& type : *types) {
      const std::string text = type.text() == nullptr ? "" : *type.text();
      if (text != "sliding_attention" && text != "full_attention") {
        return from_.Refuse(kKey,
                            absl::StrCat("has ", Quoted(text), "; sliding_attention and full_attention are read"));
      }
      local.push_back(text == "sliding_attention");
    }
    if (static_cast<int64_t>(local.size()) != layers) {
      return from_.Refuse(kKey, absl::StrCat("has ", local.size(), " entries for ", layers, " layers"));
    }
    to_.Bools(prefix_ + "attention.sliding_window_layers", local);
  }

  void Gemma() {
    const bool second = Is("gemma2");
    const double scalar = from_.FloatOr("query_pre_attn_scalar", second ? 224 : 256);
    if (!(scalar > 0)) return from_.Refuse("query_pre_attn_scalar", "must be positive");
    Put("attention.scale", 1 / std::sqrt(scalar));
    const auto cap = [&](const char* key, double otherwise) {
      Put(key, from_.FloatOr(key, from_.Says(key) ? 0 : otherwise));
    };
    cap("attn_logit_softcapping", second ? 50 : 0);
    cap("final_logit_softcapping", second ? 30 : 0);
    Must("use_bidirectional_attention", false);
  }

  void Falcon() {
    const uint64_t heads = Sizes(nullptr);
    const uint64_t hidden = from_.Uint("hidden_size");
    Put("feed_forward_length", from_.UintOr("ffn_hidden_size", 4 * hidden));
    Activation("activation");
    const bool grouped = from_.BoolOr("new_decoder_architecture", false);
    const bool one = from_.BoolOr("multi_query", true);
    const uint64_t kv_heads = from_.UintOr("num_kv_heads", heads);
    Put("attention.head_count_kv", grouped ? kv_heads : one ? 1 : heads);
    Put("attention.layer_norm_epsilon", from_.FloatOr("layer_norm_epsilon", kind_.epsilon));
    to_.Bool(prefix_ + "new_decoder_architecture", grouped);
    to_.Bool(prefix_ + "multi_query", one);
    to_.Bool(prefix_ + "parallel_attn", from_.BoolOr("parallel_attn", true));
    to_.Bool(prefix_ + "bias", from_.BoolOr("bias", false));
    Must("alibi", false);
    to_.Bool(prefix_ + "alibi", false);
    TranslateRotary(from_, prefix_, kind_.rotary, heads == 0 ? 0 : hidden / heads, to_);
  }

  void Opt() {
    Sizes("ffn_dim");
    constexpr double kTorchEpsilon = 1e-5;  // of its LayerNorm; no key says another
    Put("attention.layer_norm_epsilon", kTorchEpsilon);
    Activation("activation_function");
    Must("do_layer_norm_before", true);
    Must("_remove_final_layer_norm", false);
    Must("enable_bias", true);
    Must("layer_norm_elementwise_affine", true);
    const uint64_t hidden = from_.Uint("hidden_size");
    if (from_.UintOr("word_embed_proj_dim", hidden) != hidden) {
      from_.Refuse("word_embed_proj_dim", "differs from hidden_size, which is not supported");
    }
  }

  ConfigObject from_;
  const HfKind& kind_;
  const std::string path_;
  const std::string prefix_;
  MetadataWriter& to_;
};

}  // namespace

absl::StatusOr<HfModel> TranslateHfConfig(const JsonValue& config, const std::string& path, MetadataWriter& to) {
  if (config.object() == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": it is no JSON object"));
  ConfigObject whole(config, path);
  std::string type = whole.Text("model_type");
  std::optional<ConfigObject> text;
  if (type == "gemma3") {  // with a part that sees images, which is not loaded
    text = whole.Object("text_config");
    if (!text && whole.status().ok()) whole.Refuse("text_config", "is missing");
    type = "gemma3_text";
  }
  if (!whole.status().ok()) return whole.status();
  std::vector<std::string> known;
  for (const HfKind& kind : kKinds) {
    if (type == kind.model_type) return HfTranslation(text ? *text : whole, kind, path, to).Run();
    known.push_back(kind.model_type);
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": key model_type: ", Quoted(type), " is not supported; ",
                                                 absl::StrJoin(known, ", "), " and gemma3 are"));
}

}  // namespace runahead
