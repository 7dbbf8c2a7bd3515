// Synthetic checkpoints of any shape, with seeded random weights and a small vocabulary on which the whole
// service runs: byte-level BPE, special tokens and a ChatML template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/weight_type.h"

namespace runahead {

class GgufBuilder;

enum class SyntheticFamily { kLlama, kQwen2, kQwen3, kPhi3, kGemma2, kGemma3, kFalcon, kOpt, kStarcoder2 };
inline constexpr SyntheticFamily kSyntheticFamilies[] = {
    SyntheticFamily::kLlama,  SyntheticFamily::kQwen2,  SyntheticFamily::kQwen3,
    SyntheticFamily::kPhi3,   SyntheticFamily::kGemma2, SyntheticFamily::kGemma3,
    SyntheticFamily::kFalcon, SyntheticFamily::kOpt,    SyntheticFamily::kStarcoder2};
// As general.architecture has it.
const char* ArchitectureOf(SyntheticFamily family);

// How rotary positions are stretched: by this factor, over a context a quarter of the model's.
inline constexpr float kSyntheticFactor = 4;
enum class SyntheticScaling { kNone, kLinear, kDynamic, kLlama3, kYarn };

// What to write. heads == kv_heads is MHA, 1 < kv_heads < heads is GQA, kv_heads == 1 is MQA.
struct SyntheticModel {
  SyntheticFamily family = SyntheticFamily::kLlama;
  std::string name = "synthetic";
  int64_t layers = 2;
  int64_t hidden = 64;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 0;  // 0: hidden / heads
  int64_t rotated = 0;   // dimensions of a head; 0: all. Phi-3, Qwen
  int64_t ffn = 160;
  int64_t vocab = 320;  // at least 259: every byte and three special tokens
  int64_t tokens = 0;   // of the vocabulary, where rows of the model's tables only pad them; 0: as many as rows
  int64_t context_length = 4096;
  float rope_base = 10000;                             // of all but OPT
  SyntheticScaling scaling = SyntheticScaling::kNone;  // llama, Qwen; but llama3: StarCoder2, Gemma 3's global layers
  int64_t window = 0;   // 0: none. Gemma: of local layers; Qwen 2: of the last half; llama, Phi-3, StarCoder2: of all
  bool biases = false;  // llama, Falcon: of all matrices of their layers. Qwen 2, OPT, StarCoder2 have theirs always
  bool two_norms = false;  // Falcon: one before attention, another before the MLP, as large ones have
  float norm_eps = 1e-5f;
  bool tied = true;  // the head is the embedding; otherwise it is a tensor of its own
  WeightType embedding_type = WeightType::kF32;
  WeightType attention_type = WeightType::kF32;
  WeightType ffn_type = WeightType::kF32;
  WeightType output_type = WeightType::kF32;  // where not tied
  std::optional<WeightType> finer_type = {};  // llama: of V and the down projection, as files of K types mix them
  uint64_t seed = 1;

  // All matrices in one type.
  void SetWeightType(WeightType type) { embedding_type = attention_type = ffn_type = output_type = type; }
};

// Ids of the special tokens in every synthetic vocabulary; bos is <|im_start|> and eos <|im_end|>, as in SmolLM2.
constexpr int32_t kSyntheticEndOfText = 0;
constexpr int32_t kSyntheticImStart = 1;
constexpr int32_t kSyntheticImEnd = 2;

// Writes the checkpoint: the same options give the same bytes on every machine. Matrices are about N(0, 1/fan_in), so
// activations stay of order one; norm weights are near 1 and always F32. INVALID_ARGUMENT names an option that cannot
// be (rows that do not divide into blocks, heads no multiple of kv_heads, ...).
absl::Status WriteSyntheticGguf(const SyntheticModel& model, const std::string& path);

// What the tensors of a checkpoint are made by.
class TensorSink {
 public:
  virtual ~TensorSink() = default;
  // [rows, columns] of about N(0, gain^2/columns).
  virtual void Matrix(const std::string& name, WeightType type, int64_t columns, int64_t rows, float gain = 1) = 0;
  // [size] in f32: near 1, and near 0.
  virtual void Norm(const std::string& name, int64_t size) = 0;
  virtual void Bias(const std::string& name, int64_t size) = 0;
  // These, in f32.
  virtual void Values(const std::string& name, const std::vector<float>& values) = 0;
};
// The checkpoint without its vocabulary: keys into `file`, and all tensors in the file's order to `tensors`. Errors as
// WriteSyntheticGguf.
absl::Status AddSyntheticModel(const SyntheticModel& model, GgufBuilder& file, TensorSink& tensors);

// The vocabulary alone: tokens in the byte-level alphabet and the merges that build them, in order of rank.
struct SyntheticVocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;  // 1 normal, 3 control
  std::vector<std::string> merges;
};
SyntheticVocabulary MakeSyntheticVocabulary(int64_t size);

// The ChatML template with a default system message, as SmolLM2's has one.
std::string SyntheticChatTemplate();

}  // namespace runahead
