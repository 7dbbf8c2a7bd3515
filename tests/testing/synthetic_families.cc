#include "tests/testing/synthetic_families.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/gguf_builder.h"

namespace runahead {
namespace {

// What GGUF's `general.file_type` calls a file that is mostly of `type`; some readers ask for it.
uint32_t FileTypeOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 0;
    case WeightType::kF16:
      return 1;
    case WeightType::kBF16:
      return 32;
    case WeightType::kQ4_0:
      return 2;
    case WeightType::kQ4_1:
      return 3;
    case WeightType::kQ5_0:
      return 8;
    case WeightType::kQ5_1:
      return 9;
    case WeightType::kQ8_0:
      return 7;
    case WeightType::kQ2_K:
      return 10;
    case WeightType::kQ3_K:
      return 12;
    case WeightType::kQ4_K:
      return 15;
    case WeightType::kQ5_K:
      return 17;
    case WeightType::kQ6_K:
      return 18;
    case WeightType::kIQ4_NL:
      return 25;
    case WeightType::kIQ4_XS:
      return 30;
  }
  return 0;
}

bool IsGemma(SyntheticFamily family) {
  return family == SyntheticFamily::kGemma2 || family == SyntheticFamily::kGemma3;
}

void AddCommonKeys(const SyntheticModel& m, const std::string& architecture, GgufBuilder& file) {
  const std::string prefix = architecture + ".";
  file.AddString("general.architecture", architecture);
  file.AddString("general.name", m.name);
  file.AddUint32("general.file_type", FileTypeOf(m.ffn_type));
  file.AddUint32(prefix + "block_count", static_cast<uint32_t>(m.layers));
  file.AddUint32(prefix + "context_length", static_cast<uint32_t>(m.context_length));
  file.AddUint32(prefix + "embedding_length", static_cast<uint32_t>(m.hidden));
  file.AddUint32(prefix + "feed_forward_length", static_cast<uint32_t>(m.ffn));
  file.AddUint32(prefix + "attention.head_count", static_cast<uint32_t>(m.heads));
}

void AddScaling(const SyntheticModel& m, const std::string& prefix, GgufBuilder& file) {
  const char* const names[] = {"none", "linear", "dynamic", "none", "yarn"};  // llama3 is a tensor
  if (m.scaling == SyntheticScaling::kNone || m.scaling == SyntheticScaling::kLlama3) return;
  file.AddString(prefix + "rope.scaling.type", names[static_cast<int>(m.scaling)]);
  file.AddFloat(prefix + "rope.scaling.factor", kSyntheticFactor);
  if (m.scaling != SyntheticScaling::kYarn) return;
  file.AddUint32(prefix + "rope.scaling.original_context_length", static_cast<uint32_t>(m.context_length / 4));
}

// Of all families with rotary positions. The converter writes sizes of heads where they are not implied.
void AddRotaryKeys(const SyntheticModel& m, const std::string& prefix, GgufBuilder& file) {
  file.AddUint32(prefix + "attention.head_count_kv", static_cast<uint32_t>(m.kv_heads));
  const bool layer_norm = m.family == SyntheticFamily::kFalcon || m.family == SyntheticFamily::kStarcoder2;
  file.AddFloat(prefix + (layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
                m.norm_eps);
  file.AddFloat(prefix + "rope.freq_base", m.rope_base);
  file.AddUint32(prefix + "rope.dimension_count", static_cast<uint32_t>(m.rotated != 0 ? m.rotated : HeadDim(m)));
  if (HeadDim(m) * m.heads != m.hidden) {
    file.AddUint32(prefix + "attention.key_length", static_cast<uint32_t>(HeadDim(m)));
    file.AddUint32(prefix + "attention.value_length", static_cast<uint32_t>(HeadDim(m)));
  }
  AddScaling(m, prefix, file);
  if (m.window > 0) file.AddUint32(prefix + "attention.sliding_window", static_cast<uint32_t>(m.window));
  if (m.window > 0 && m.family == SyntheticFamily::kQwen2) {
    file.AddUint32(prefix + "attention.sliding_window_from_layer", static_cast<uint32_t>(m.layers / 2));
  }
  if (m.family == SyntheticFamily::kGemma2) {
    file.AddFloat(prefix + "attn_logit_softcapping", 2);  // so low that a model without them says something else
    file.AddFloat(prefix + "final_logit_softcapping", 3);
  }
  if (m.family == SyntheticFamily::kLlama) file.AddUint32(prefix + "vocab_size", static_cast<uint32_t>(m.vocab));
}

// A layer's matrix, and its bias where the model has those.
void AddBiased(const std::string& name, WeightType type, int64_t columns, int64_t rows, bool biased,
               TensorSink& tensors) {
  tensors.Matrix(name + ".weight", type, columns, rows);
  if (biased) tensors.Bias(name + ".bias", rows);
}

void AddLlamaLayer(const SyntheticModel& m, const std::string& prefix, TensorSink& tensors) {
  const int64_t q_dim = m.heads * HeadDim(m), kv_dim = m.kv_heads * HeadDim(m);
  const WeightType finer_attention = m.finer_type.value_or(m.attention_type);
  const bool qkv_biases = m.biases || m.family == SyntheticFamily::kQwen2;
  tensors.Norm(prefix + "attn_norm.weight", m.hidden);
  const bool fused = m.family == SyntheticFamily::kPhi3;
  if (fused) {
    AddBiased(prefix + "attn_qkv", m.attention_type, m.hidden, q_dim + 2 * kv_dim, m.biases, tensors);
  } else {
    AddBiased(prefix + "attn_q", m.attention_type, m.hidden, q_dim, qkv_biases, tensors);
    AddBiased(prefix + "attn_k", m.attention_type, m.hidden, kv_dim, qkv_biases, tensors);
    AddBiased(prefix + "attn_v", finer_attention, m.hidden, kv_dim, qkv_biases, tensors);
  }
  if (m.family == SyntheticFamily::kQwen3 || m.family == SyntheticFamily::kGemma3) {
    tensors.Norm(prefix + "attn_q_norm.weight", HeadDim(m));
    tensors.Norm(prefix + "attn_k_norm.weight", HeadDim(m));
  }
  AddBiased(prefix + "attn_output", m.attention_type, q_dim, m.hidden, m.biases, tensors);
  if (IsGemma(m.family)) tensors.Norm(prefix + "post_attention_norm.weight", m.hidden);
  tensors.Norm(prefix + "ffn_norm.weight", m.hidden);
  if (!fused) AddBiased(prefix + "ffn_gate", m.ffn_type, m.hidden, m.ffn, m.biases, tensors);
  AddBiased(prefix + "ffn_up", m.ffn_type, m.hidden, fused ? 2 * m.ffn : m.ffn, m.biases, tensors);
  AddBiased(prefix + "ffn_down", m.finer_type.value_or(m.ffn_type), m.ffn, m.hidden, m.biases, tensors);
  if (IsGemma(m.family)) tensors.Norm(prefix + "post_ffw_norm.weight", m.hidden);
}

// What each frequency is divided by, as Llama 3's authors have it.
std::vector<float> Llama3Divisors(const SyntheticModel& m) {
  constexpr double kLow = 1, kHigh = 4;
  const double original = static_cast<double>(m.context_length) / 4;
  std::vector<float> divisors;
  for (int64_t d = 0; d < HeadDim(m) / 2; ++d) {
    const double wave =
        2 * std::numbers::pi * std::pow(m.rope_base, 2 * static_cast<double>(d) / static_cast<double>(HeadDim(m)));
    const double smooth = std::min(std::max((original / wave - kLow) / (kHigh - kLow), 0.0), 1.0);
    divisors.push_back(static_cast<float>(1 / ((1 - smooth) / kSyntheticFactor + smooth)));
  }
  return divisors;
}

void AddLlamaTensors(const SyntheticModel& m, TensorSink& tensors) {
  tensors.Matrix("token_embd.weight", m.embedding_type, m.hidden, m.vocab);
  if (m.scaling == SyntheticScaling::kLlama3) tensors.Values("rope_freqs.weight", Llama3Divisors(m));
  for (int64_t layer = 0; layer < m.layers; ++layer) AddLlamaLayer(m, absl::StrCat("blk.", layer, "."), tensors);
  tensors.Norm("output_norm.weight", m.hidden);
  if (!m.tied) tensors.Matrix("output.weight", m.output_type, m.hidden, m.vocab);
}

void AddLayerNorm(const std::string& name, int64_t size, TensorSink& tensors) {
  tensors.Norm(name + ".weight", size);
  tensors.Bias(name + ".bias", size);
}

void AddFalconTensors(const SyntheticModel& m, TensorSink& tensors) {
  const int64_t kv_dim = m.kv_heads * HeadDim(m);
  tensors.Matrix("token_embd.weight", m.embedding_type, m.hidden, m.vocab);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    AddLayerNorm(prefix + "attn_norm", m.hidden, tensors);
    if (m.two_norms) AddLayerNorm(prefix + "attn_norm_2", m.hidden, tensors);
    AddBiased(prefix + "attn_qkv", m.attention_type, m.hidden, m.hidden + 2 * kv_dim, m.biases, tensors);
    AddBiased(prefix + "attn_output", m.attention_type, m.hidden, m.hidden, m.biases, tensors);
    AddBiased(prefix + "ffn_up", m.ffn_type, m.hidden, m.ffn, m.biases, tensors);
    AddBiased(prefix + "ffn_down", m.ffn_type, m.ffn, m.hidden, m.biases, tensors);
  }
  AddLayerNorm("output_norm", m.hidden, tensors);
  if (!m.tied) tensors.Matrix("output.weight", m.output_type, m.hidden, m.vocab);
}

void AddOptTensors(const SyntheticModel& m, TensorSink& tensors) {
  // Positions outweigh what ReLU leaves the same for all tokens.
  tensors.Matrix("token_embd.weight", m.embedding_type, m.hidden, m.vocab);
  tensors.Matrix("position_embd.weight", m.embedding_type, m.hidden, m.context_length + 2, 6);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    AddLayerNorm(prefix + "attn_norm", m.hidden, tensors);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      AddBiased(prefix + name, m.attention_type, m.hidden, m.hidden, true, tensors);
    }
    AddLayerNorm(prefix + "ffn_norm", m.hidden, tensors);
    AddBiased(prefix + "ffn_up", m.ffn_type, m.hidden, m.ffn, true, tensors);
    AddBiased(prefix + "ffn_down", m.ffn_type, m.ffn, m.hidden, true, tensors);
  }
  AddLayerNorm("output_norm", m.hidden, tensors);
}

void AddStarcoder2Tensors(const SyntheticModel& m, TensorSink& tensors) {
  const int64_t q_dim = m.heads * HeadDim(m), kv_dim = m.kv_heads * HeadDim(m);
  tensors.Matrix("token_embd.weight", m.embedding_type, m.hidden, m.vocab);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    AddLayerNorm(prefix + "attn_norm", m.hidden, tensors);
    AddBiased(prefix + "attn_q", m.attention_type, m.hidden, q_dim, true, tensors);
    AddBiased(prefix + "attn_k", m.attention_type, m.hidden, kv_dim, true, tensors);
    AddBiased(prefix + "attn_v", m.attention_type, m.hidden, kv_dim, true, tensors);
    AddBiased(prefix + "attn_output", m.attention_type, q_dim, m.hidden, true, tensors);
    AddLayerNorm(prefix + "ffn_norm", m.hidden, tensors);
    AddBiased(prefix + "ffn_up", m.ffn_type, m.hidden, m.ffn, true, tensors);
    AddBiased(prefix + "ffn_down", m.ffn_type, m.ffn, m.hidden, true, tensors);
  }
  AddLayerNorm("output_norm", m.hidden, tensors);
  if (!m.tied) tensors.Matrix("output.weight", m.output_type, m.hidden, m.vocab);
}

}  // namespace

const char* ArchitectureOf(SyntheticFamily family) {
  switch (family) {
    case SyntheticFamily::kLlama:
      return "llama";
    case SyntheticFamily::kQwen2:
      return "qwen2";
    case SyntheticFamily::kQwen3:
      return "qwen3";
    case SyntheticFamily::kPhi3:
      return "phi3";
    case SyntheticFamily::kGemma2:
      return "gemma2";
    case SyntheticFamily::kGemma3:
      return "gemma3";
    case SyntheticFamily::kFalcon:
      return "falcon";
    case SyntheticFamily::kOpt:
      return "opt";
    case SyntheticFamily::kStarcoder2:
      return "starcoder2";
  }
  return "";
}

void AddFamilyKeys(const SyntheticModel& model, GgufBuilder& file) {
  const std::string architecture = ArchitectureOf(model.family), prefix = architecture + ".";
  AddCommonKeys(model, architecture, file);
  if (model.family == SyntheticFamily::kOpt) {
    file.AddFloat(prefix + "attention.layer_norm_epsilon", model.norm_eps);
  } else {
    AddRotaryKeys(model, prefix, file);
  }
}

void AddFamilyTensors(const SyntheticModel& model, TensorSink& tensors) {
  switch (model.family) {
    case SyntheticFamily::kFalcon:
      return AddFalconTensors(model, tensors);
    case SyntheticFamily::kOpt:
      return AddOptTensors(model, tensors);
    case SyntheticFamily::kStarcoder2:
      return AddStarcoder2Tensors(model, tensors);
    default:
      return AddLlamaTensors(model, tensors);
  }
}

}  // namespace runahead
