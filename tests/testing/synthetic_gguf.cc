#include "tests/testing/synthetic_gguf.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/quantize.h"

namespace runahead {
namespace {

// Steele and others' SplitMix64: small, seeded, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

  // About N(0, 1): the sum of four 16-bit numbers, so that no library's logarithm decides about the bits.
  float Normal() {
    const uint64_t bits = Next();
    const int sum = static_cast<int>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    constexpr float kDeviation = 37837.23f;  // sqrt(4 * 65536^2 / 12)
    return (static_cast<float>(sum) - 2 * 65535.0f) / kDeviation;
  }

 private:
  uint64_t state_;
};

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
  const auto fits = [](int64_t columns, WeightType type) { return columns % BlockOf(type).elements == 0; };
  status.Update(Check(fits(m.hidden, m.embedding_type) && fits(m.hidden, m.attention_type) &&
                          fits(m.hidden, m.ffn_type) && (m.tied || fits(m.hidden, m.output_type)),
                      "hidden must be a multiple of 32 for quantised types"));
  status.Update(Check(fits(m.heads * HeadDim(m), m.attention_type),
                      "heads * head_dim must be a multiple of 32 for quantised types"));
  status.Update(Check(fits(m.ffn, m.ffn_type), "ffn must be a multiple of 32 for quantised types"));
  return status;
}

void AddMetadata(const SyntheticModel& m, GgufBuilder& file) {
  file.AddString("general.architecture", "llama");
  file.AddString("general.name", m.name);
  file.AddUint32("llama.block_count", static_cast<uint32_t>(m.layers));
  file.AddUint32("llama.context_length", static_cast<uint32_t>(m.context_length));
  file.AddUint32("llama.embedding_length", static_cast<uint32_t>(m.hidden));
  file.AddUint32("llama.feed_forward_length", static_cast<uint32_t>(m.ffn));
  file.AddUint32("llama.attention.head_count", static_cast<uint32_t>(m.heads));
  file.AddUint32("llama.attention.head_count_kv", static_cast<uint32_t>(m.kv_heads));
  file.AddFloat("llama.attention.layer_norm_rms_epsilon", m.norm_eps);
  file.AddFloat("llama.rope.freq_base", m.rope_base);
  file.AddUint32("llama.rope.dimension_count", static_cast<uint32_t>(HeadDim(m)));
  if (HeadDim(m) * m.heads != m.hidden) {  // the converter writes these where they are not implied
    file.AddUint32("llama.attention.key_length", static_cast<uint32_t>(HeadDim(m)));
    file.AddUint32("llama.attention.value_length", static_cast<uint32_t>(HeadDim(m)));
  }
  file.AddUint32("llama.vocab_size", static_cast<uint32_t>(m.vocab));
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

// Adds tensors with weights drawn in the order of the calls.
class WeightWriter {
 public:
  WeightWriter(GgufBuilder& file, uint64_t seed) : file_(file), random_(seed) {}

  // [rows, columns] of about N(0, 1/columns).
  void Matrix(const std::string& name, WeightType type, int64_t columns, int64_t rows) {
    const float deviation = 1 / std::sqrt(static_cast<float>(columns));
    std::vector<float> row(static_cast<size_t>(columns));
    std::string data;
    data.reserve(WeightRowBytes(type, columns) * static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (float& value : row) value = deviation * random_.Normal();
      data += Quantize(type, row);
    }
    file_.AddTensor(name, type, {columns, rows}, std::move(data));
  }

  // Norm weights, near but not at 1, so that forgetting one is seen.
  void Norm(const std::string& name, int64_t size) {
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = 1 + 0.1f * random_.Normal();
    file_.AddTensor(name, WeightType::kF32, {size}, Quantize(WeightType::kF32, values));
  }

 private:
  GgufBuilder& file_;
  Random random_;
};

}  // namespace

absl::Status WriteSyntheticGguf(const SyntheticModel& m, const std::string& path) {
  if (absl::Status status = Validate(m); !status.ok()) return status;
  GgufBuilder file;
  AddMetadata(m, file);
  WeightWriter weights(file, m.seed);
  const int64_t q_dim = m.heads * HeadDim(m);
  const int64_t kv_dim = m.kv_heads * HeadDim(m);
  weights.Matrix("token_embd.weight", m.embedding_type, m.hidden, m.vocab);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    weights.Norm(prefix + "attn_norm.weight", m.hidden);
    weights.Matrix(prefix + "attn_q.weight", m.attention_type, m.hidden, q_dim);
    weights.Matrix(prefix + "attn_k.weight", m.attention_type, m.hidden, kv_dim);
    weights.Matrix(prefix + "attn_v.weight", m.attention_type, m.hidden, kv_dim);
    weights.Matrix(prefix + "attn_output.weight", m.attention_type, q_dim, m.hidden);
    weights.Norm(prefix + "ffn_norm.weight", m.hidden);
    weights.Matrix(prefix + "ffn_gate.weight", m.ffn_type, m.hidden, m.ffn);
    weights.Matrix(prefix + "ffn_up.weight", m.ffn_type, m.hidden, m.ffn);
    weights.Matrix(prefix + "ffn_down.weight", m.ffn_type, m.ffn, m.hidden);
  }
  weights.Norm("output_norm.weight", m.hidden);
  if (!m.tied) weights.Matrix("output.weight", m.output_type, m.hidden, m.vocab);
  return file.Write(path);
}

}  // namespace runahead
