#include "tests/testing/synthetic_gguf.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/weight_writer.h"

namespace runahead {
namespace {

absl::Status Check(bool holds, absl::string_view message) {
  return holds ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat("synthetic model: ", message));
}

int64_t HeadDim(const SyntheticModel& model) {
  return model.head_dim != 0 ? model.head_dim : model.hidden / std::max<int64_t>(model.heads, 1);
}

absl::Status Validate(const SyntheticModel& m) {
  absl::Status status = Check(m.layers > 0 && m.hidden > 0 && m.heads > 0 && m.kv_heads > 0 && m.ffn > 0 &&
                                  m.context_length > 0 && m.head_dim >= 0,
                              "every size must be positive");
  status.Update(Check(m.vocab >= 259, "the vocabulary needs at least 259 tokens"));
  if (!status.ok()) return status;
  status.Update(Check(m.heads % m.kv_heads == 0, "heads must be a multiple of kv_heads"));
  status.Update(Check(m.head_dim != 0 || m.hidden % m.heads == 0, "hidden must be a multiple of heads"));
  status.Update(Check(HeadDim(m) % 2 == 0, "head_dim must be even"));
  if (m.family == SyntheticFamily::kOpt) {
    status.Update(Check(m.kv_heads == m.heads && HeadDim(m) * m.heads == m.hidden && m.tied,
                        "OPT has as many KV heads as heads, which share the hidden size, and a tied head"));
  }
  const auto fits = [](int64_t columns, WeightType type) { return columns % BlockOf(type).elements == 0; };
  status.Update(Check(fits(m.hidden, m.embedding_type) && fits(m.hidden, m.attention_type) &&
                          fits(m.hidden, m.ffn_type) && (m.tied || fits(m.hidden, m.output_type)),
                      "hidden must be a multiple of the blocks of quantised types"));
  status.Update(Check(fits(m.heads * HeadDim(m), m.attention_type),
                      "heads * head_dim must be a multiple of the blocks of quantised types"));
  status.Update(Check(fits(m.ffn, m.ffn_type), "ffn must be a multiple of the blocks of quantised types"));
  status.Update(Check(!m.finer_type.has_value() || (fits(m.hidden, *m.finer_type) && fits(m.ffn, *m.finer_type)),
                      "hidden and ffn must be multiples of the blocks of the finer type"));
  return status;
}

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

void AddLlamaKeys(const SyntheticModel& m, GgufBuilder& file) {
  AddCommonKeys(m, "llama", file);
  file.AddUint32("llama.attention.head_count_kv", static_cast<uint32_t>(m.kv_heads));
  file.AddFloat("llama.attention.layer_norm_rms_epsilon", m.norm_eps);
  file.AddFloat("llama.rope.freq_base", m.rope_base);
  file.AddUint32("llama.rope.dimension_count", static_cast<uint32_t>(HeadDim(m)));
  if (HeadDim(m) * m.heads != m.hidden) {  // the converter writes these where they are not implied
    file.AddUint32("llama.attention.key_length", static_cast<uint32_t>(HeadDim(m)));
    file.AddUint32("llama.attention.value_length", static_cast<uint32_t>(HeadDim(m)));
  }
  file.AddUint32("llama.vocab_size", static_cast<uint32_t>(m.vocab));
}

void AddOptKeys(const SyntheticModel& m, GgufBuilder& file) {
  AddCommonKeys(m, "opt", file);
  file.AddFloat("opt.attention.layer_norm_epsilon", m.norm_eps);
}

void AddVocabulary(const SyntheticModel& m, GgufBuilder& file) {
  const SyntheticVocabulary vocabulary = MakeSyntheticVocabulary(m.vocab);
  file.AddString("tokenizer.ggml.model", "gpt2");
  file.AddString("tokenizer.ggml.pre", "smollm");
  file.AddStrings("tokenizer.ggml.tokens", vocabulary.tokens);
  file.AddInts("tokenizer.ggml.token_type", vocabulary.types);
  file.AddStrings("tokenizer.ggml.merges", vocabulary.merges);
  file.AddUint32("tokenizer.ggml.bos_token_id", kSyntheticImStart);
  file.AddUint32("tokenizer.ggml.eos_token_id", kSyntheticImEnd);
  file.AddUint32("tokenizer.ggml.unknown_token_id", kSyntheticEndOfText);
  file.AddUint32("tokenizer.ggml.padding_token_id", kSyntheticImEnd);
  file.AddBool("tokenizer.ggml.add_bos_token", false);
  file.AddString("tokenizer.chat_template", SyntheticChatTemplate());
}

void AddLlamaTensors(const SyntheticModel& m, TensorSink& tensors) {
  const int64_t q_dim = m.heads * HeadDim(m), kv_dim = m.kv_heads * HeadDim(m);
  tensors.Matrix("token_embd.weight", m.embedding_type, m.hidden, m.vocab);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    tensors.Norm(prefix + "attn_norm.weight", m.hidden);
    tensors.Matrix(prefix + "attn_q.weight", m.attention_type, m.hidden, q_dim);
    tensors.Matrix(prefix + "attn_k.weight", m.attention_type, m.hidden, kv_dim);
    tensors.Matrix(prefix + "attn_v.weight", m.finer_type.value_or(m.attention_type), m.hidden, kv_dim);
    tensors.Matrix(prefix + "attn_output.weight", m.attention_type, q_dim, m.hidden);
    tensors.Norm(prefix + "ffn_norm.weight", m.hidden);
    tensors.Matrix(prefix + "ffn_gate.weight", m.ffn_type, m.hidden, m.ffn);
    tensors.Matrix(prefix + "ffn_up.weight", m.ffn_type, m.hidden, m.ffn);
    tensors.Matrix(prefix + "ffn_down.weight", m.finer_type.value_or(m.ffn_type), m.ffn, m.hidden);
  }
  tensors.Norm("output_norm.weight", m.hidden);
  if (!m.tied) tensors.Matrix("output.weight", m.output_type, m.hidden, m.vocab);
}

void AddOptTensors(const SyntheticModel& m, TensorSink& tensors) {
  const auto biased = [&](const std::string& name, WeightType type, int64_t columns, int64_t rows) {
    tensors.Matrix(name + ".weight", type, columns, rows);
    tensors.Bias(name + ".bias", rows);
  };
  const auto norm = [&](const std::string& name) {
    tensors.Norm(name + ".weight", m.hidden);
    tensors.Bias(name + ".bias", m.hidden);
  };
  // Positions outweigh what ReLU leaves the same for all tokens.
  tensors.Matrix("token_embd.weight", m.embedding_type, m.hidden, m.vocab);
  tensors.Matrix("position_embd.weight", m.embedding_type, m.hidden, m.context_length + 2, 6);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    norm(prefix + "attn_norm");
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      biased(prefix + name, m.attention_type, m.hidden, m.hidden);
    }
    norm(prefix + "ffn_norm");
    biased(prefix + "ffn_up", m.ffn_type, m.hidden, m.ffn);
    biased(prefix + "ffn_down", m.ffn_type, m.ffn, m.hidden);
  }
  norm("output_norm");
}

}  // namespace

absl::Status AddSyntheticModel(const SyntheticModel& m, GgufBuilder& file, TensorSink& tensors) {
  if (absl::Status status = Validate(m); !status.ok()) return status;
  switch (m.family) {
    case SyntheticFamily::kLlama:
      AddLlamaKeys(m, file);
      AddLlamaTensors(m, tensors);
      break;
    case SyntheticFamily::kOpt:
      AddOptKeys(m, file);
      AddOptTensors(m, tensors);
      break;
  }
  return absl::OkStatus();
}

absl::Status WriteSyntheticGguf(const SyntheticModel& m, const std::string& path) {
  GgufBuilder file;
  WeightWriter weights(file, m.seed);
  if (absl::Status status = AddSyntheticModel(m, file, weights); !status.ok()) return status;
  AddVocabulary(m, file);
  return file.Write(path);
}

}  // namespace runahead
