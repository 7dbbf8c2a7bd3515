#include "tests/testing/synthetic_gguf.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/synthetic_families.h"
#include "tests/testing/weight_writer.h"

namespace runahead {
namespace {

absl::Status Check(bool holds, absl::string_view message) {
  return holds ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat("synthetic model: ", message));
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
  status.Update(Check(m.rotated >= 0 && m.rotated % 2 == 0 && m.rotated <= HeadDim(m),
                      "rotated dimensions must be even and at most head_dim"));
  if (m.family == SyntheticFamily::kOpt) {
    status.Update(Check(m.kv_heads == m.heads && HeadDim(m) * m.heads == m.hidden && m.tied,
                        "OPT has as many KV heads as heads, which share the hidden size, and a tied head"));
  }
  if (m.family == SyntheticFamily::kFalcon) {
    status.Update(Check(HeadDim(m) * m.heads == m.hidden, "Falcon's heads share the hidden size"));
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

void AddVocabulary(const SyntheticModel& m, GgufBuilder& file) {
  const SyntheticVocabulary vocabulary = MakeSyntheticVocabulary(m.tokens > 0 ? m.tokens : m.vocab);
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

}  // namespace

absl::Status AddSyntheticModel(const SyntheticModel& m, GgufBuilder& file, TensorSink& tensors) {
  if (absl::Status status = Validate(m); !status.ok()) return status;
  AddFamilyKeys(m, file);
  AddFamilyTensors(m, tensors);
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
