#include "worker/format/hf_names.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace runahead {
namespace {

using Module = HfNames::Module;
using Parts = HfNames::Parts;

constexpr char kHead[] = "lm_head";

std::vector<HfNames::Family> MakeFamilies() {
  const Module head = {kHead, "output"}, embedding = {"embed_tokens", "token_embd"};
  const std::vector<Module> ends = {embedding, {"norm", "output_norm"}, head};
  const auto attention = [](Parts qkv, Parts output) -> std::vector<Module> {
    return {{"self_attn.q_proj", "attn_q", qkv},
            {"self_attn.k_proj", "attn_k", qkv},
            {"self_attn.v_proj", "attn_v", qkv},
            {"self_attn.o_proj", "attn_output", output}};
  };
  const auto mlp = [](Parts parts) -> std::vector<Module> {
    return {
        {"mlp.gate_proj", "ffn_gate", parts}, {"mlp.up_proj", "ffn_up", parts}, {"mlp.down_proj", "ffn_down", parts}};
  };
  const std::vector<Module> norms = {{"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"}};
  const std::vector<Module> four_norms = {{"input_layernorm", "attn_norm"},
                                          {"post_attention_layernorm", "post_attention_norm"},
                                          {"pre_feedforward_layernorm", "ffn_norm"},
                                          {"post_feedforward_layernorm", "post_ffw_norm"}};
  const std::vector<Module> head_norms = {{"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"}};
  const auto joined = [](std::vector<std::vector<Module>> parts) {
    std::vector<Module> all;
    for (const std::vector<Module>& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const auto llama = [&](const char* architecture, Parts qkv) -> HfNames::Family {
    return {architecture, "model.", "layers", ends,
            joined({attention(qkv, Parts::kMayHaveBias), mlp(Parts::kMayHaveBias), norms})};
  };
  HfNames::Family qwen3 = llama("qwen3", Parts::kMayHaveBias);
  qwen3.layer = joined({qwen3.layer, head_norms});
  const std::vector<Module> gemma =
      joined({attention(Parts::kWeight, Parts::kWeight), mlp(Parts::kWeight), four_norms});
  const std::vector<Module> phi = {{"self_attn.qkv_proj", "attn_qkv"},
                                   {"self_attn.o_proj", "attn_output"},
                                   {"mlp.gate_up_proj", "ffn_up"},
                                   {"mlp.down_proj", "ffn_down"}};
  // Small models have one norm; large ones have ln_attn before attention and ln_mlp before the MLP.
  const std::vector<Module> falcon = {{"self_attention.query_key_value", "attn_qkv", Parts::kMayHaveBias},
                                      {"self_attention.dense", "attn_output", Parts::kMayHaveBias},
                                      {"mlp.dense_h_to_4h", "ffn_up", Parts::kMayHaveBias},
                                      {"mlp.dense_4h_to_h", "ffn_down", Parts::kMayHaveBias},
                                      {"input_layernorm", "attn_norm", Parts::kWithBias},
                                      {"ln_mlp", "attn_norm", Parts::kWithBias},
                                      {"ln_attn", "attn_norm_2", Parts::kWithBias, true}};
  const std::vector<Module> opt = {{"self_attn.q_proj", "attn_q", Parts::kWithBias},
                                   {"self_attn.k_proj", "attn_k", Parts::kWithBias},
                                   {"self_attn.v_proj", "attn_v", Parts::kWithBias},
                                   {"self_attn.out_proj", "attn_output", Parts::kWithBias},
                                   {"self_attn_layer_norm", "attn_norm", Parts::kWithBias},
                                   {"fc1", "ffn_up", Parts::kWithBias},
                                   {"fc2", "ffn_down", Parts::kWithBias},
                                   {"final_layer_norm", "ffn_norm", Parts::kWithBias}};
  const std::vector<Module> starcoder2 = {{"mlp.c_fc", "ffn_up", Parts::kWithBias},
                                          {"mlp.c_proj", "ffn_down", Parts::kWithBias},
                                          {"input_layernorm", "attn_norm", Parts::kWithBias},
                                          {"post_attention_layernorm", "ffn_norm", Parts::kWithBias}};
  return {
      llama("llama", Parts::kMayHaveBias),
      llama("qwen2", Parts::kWithBias),
      qwen3,
      {"phi3", "model.", "layers", ends, joined({phi, norms})},
      {"gemma2", "model.", "layers", ends, gemma},
      {"gemma3", "model.", "layers", ends, joined({gemma, head_norms})},
      {"falcon",
       "transformer.",
       "h",
       {{"word_embeddings", "token_embd"}, {"ln_f", "output_norm", Parts::kWithBias}, head},
       falcon},
      {"opt",
       "model.decoder.",
       "layers",
       {embedding, {"embed_positions", "position_embd"}, {"final_layer_norm", "output_norm", Parts::kWithBias}, head},
       opt},
      {"starcoder2",
       "model.",
       "layers",
       {embedding, {"norm", "output_norm", Parts::kWithBias}, head},
       joined({attention(Parts::kWithBias, Parts::kWithBias), starcoder2})}};
}

const HfNames::Family& FamilyOf(absl::string_view architecture) {
  static const std::vector<HfNames::Family>& families = *new std::vector<HfNames::Family>(MakeFamilies());
  for (const HfNames::Family& family : families) {
    if (family.architecture == architecture) return family;
  }
  return families.front();
}

// What the text model's names begin with depends on which of transformers' classes wrote the folder.
absl::string_view WithoutPrefixes(absl::string_view stored) {
  bool stripped = true;
  while (stripped) {
    stripped = false;
    for (const char* prefix : {"model.", "language_model.", "transformer.", "decoder."}) {
      stripped |= absl::ConsumePrefix(&stored, prefix);
    }
  }
  return stored;
}

bool IsIgnored(absl::string_view stored) {
  for (const char* part : {"vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "audio_tower."}) {
    if (absl::StartsWith(stored, part)) return true;
  }
  // Buffers that releases of transformers, and code that came with models, kept beside the weights: tables of rotation,
  // causal masks, numbers of positions, the version of a converter. And what other servers scale KV of 8 bits by.
  const std::string whole = absl::StrCat(".", stored);
  for (const char* buffer :
       {".rotary_emb.inv_freq", ".rotary_emb.original_inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached",
        ".attn.bias", ".attn.masked_bias", ".self_attn.bias", ".self_attn.masked_bias", ".position_ids",
        ".embed_positions._float_tensor", ".rotary.inv_freq", ".maybe_rotary.inv_freq", ".causal_mask", ".normalizer",
        ".k_scale", ".v_scale", ".kv_scale"}) {
    if (absl::EndsWith(whole, buffer)) return true;
  }
  return stored == "version";
}

}  // namespace

HfNames::HfNames(absl::string_view architecture, int64_t layers, bool tied, std::vector<std::string> biases)
    : family_(FamilyOf(architecture)), layers_(layers), tied_(tied), biases_(std::move(biases)) {}

std::optional<HfName> HfNames::Find(const std::vector<Module>& modules, absl::string_view stored) const {
  for (const Module& module : modules) {
    absl::string_view part = stored;
    if (!absl::ConsumePrefix(&part, module.stored)) continue;
    if (part == ".weight" || (part == ".bias" && module.parts != Parts::kWeight)) {
      return HfName{HfName::Role::kUsed, absl::StrCat(module.name, part), part == ".bias" && !NeedsBias(module)};
    }
  }
  return std::nullopt;
}

bool HfNames::NeedsBias(const Module& module) const {
  if (module.parts != Parts::kMayHaveBias) return module.parts == Parts::kWithBias;
  return std::any_of(biases_.begin(), biases_.end(),
                     [&](const std::string& of) { return absl::StartsWith(module.stored, of); });
}

HfName HfNames::Of(absl::string_view stored) const {
  absl::string_view rest = WithoutPrefixes(stored);
  if (IsIgnored(rest)) return {HfName::Role::kIgnored};
  if (std::optional<HfName> found = Find(family_.ends, rest)) return *std::move(found);
  if (!absl::ConsumePrefix(&rest, absl::StrCat(family_.layers, "."))) return {};
  const absl::string_view number = rest.substr(0, rest.find('.'));
  int64_t layer = 0;
  if (!absl::SimpleAtoi(number, &layer) || layer < 0 || absl::StrCat(layer) != number) return {};
  if (layer >= layers_) return {HfName::Role::kBeyond};
  rest.remove_prefix(number.size());
  if (!absl::ConsumePrefix(&rest, ".")) return {};
  std::optional<HfName> found = Find(family_.layer, rest);
  if (!found) return {};
  found->name = absl::StrCat("blk.", layer, ".", found->name);
  return *std::move(found);
}

std::optional<HfNames::Needed> HfNames::FirstMissing(absl::FunctionRef<bool(const std::string& name)> has) const {
  std::optional<Needed> missing;
  const auto check = [&](const Module& module, const std::string& name, const std::string& stored) {
    for (const char* part : {".weight", ".bias"}) {
      if (module.may_lack || (part[1] == 'b' && !NeedsBias(module))) continue;
      Needed needed{absl::StrCat(name, module.name, part), absl::StrCat(stored, module.stored, part)};
      if (!missing && !has(needed.name)) missing = std::move(needed);
    }
  };
  for (const Module& module : family_.ends) {
    const bool head = module.stored == absl::string_view(kHead);
    if (!(head && tied_)) check(module, "", head ? "" : family_.prefix);
  }
  for (int64_t layer = 0; layer < layers_ && !missing; ++layer) {
    for (const Module& module : family_.layer) {
      check(module, absl::StrCat("blk.", layer, "."), absl::StrCat(family_.prefix, family_.layers, ".", layer, "."));
    }
  }
  return missing;
}

}  // namespace runahead
