// The same weights from a GGUF file and from a Hugging Face folder: the same numbers.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/folder_builder.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/synthetic_folder.h"
#include "worker/format/gguf.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

// Heads of another size than the hidden one over their number, grouped.
SyntheticModel GroupedModel() {
  SyntheticModel model;
  model.hidden = 96;
  model.heads = 6;
  model.kv_heads = 2;
  model.head_dim = 8;
  model.ffn = 160;
  return model;
}

std::string WriteBoth(const SyntheticModel& model, const std::string& name, const SyntheticFolder& options,
                      std::string* gguf = nullptr) {
  const std::string file = WriteSynthetic(model, name);
  if (gguf != nullptr) *gguf = file;
  const std::string folder = ::testing::TempDir() + name + "_folder";
  WriteSyntheticFolder(**OpenGguf(file), folder, options);
  return folder;
}

// Has `tensor` of another safetensors file in the folder, beside its own, which become those of an index.
void AddShard(const std::string& folder, const std::string& other, const std::string& tensor) {
  const std::string first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";
  std::string map = absl::StrCat("\"", tensor, "\":\"", second, "\"");
  const std::shared_ptr<const ModelFile> file = *OpenModelFile(folder);
  for (const FileTensor& own : file->tensors()) {
    const std::string stored = own.stored_as.substr(own.stored_as.rfind(' ') + 1);
    absl::StrAppend(&map, ",\"", stored, "\":\"", first, "\"");
  }
  std::filesystem::rename(folder + "/model.safetensors", folder + "/" + first);
  std::filesystem::rename(other, folder + "/" + second);
  std::ofstream(folder + "/model.safetensors.index.json") << "{\"weight_map\":{" << map << "}}";
}

std::vector<std::vector<float>> LogitsOf(const std::string& path) {
  const LoadedModel loaded = LoadForTest(path, DType::kF32, 2);
  SequenceRunner runner(loaded, 64);
  return runner.Append(RandomIds(20, loaded.model->config().vocab, 3), false, true);
}

TEST(FolderModel, LogitsAreThoseOfTheGgufFile) {
  for (const bool tied : {true, false}) {
    SyntheticModel model = GroupedModel();
    model.tied = tied;
    std::string gguf;
    const std::string folder = WriteBoth(model, "llama_f32", {.shards = 3}, &gguf);
    EXPECT_EQ(LogitsOf(folder), LogitsOf(gguf));
  }
}

// As fine-tuning writes it that unties the head and leaves the configuration as it was.
TEST(FolderModel, AHeadOfItsOwnIsUsedWhateverTheConfigurationSays) {
  for (const SyntheticFamily family : kSyntheticFamilies) {
    SyntheticModel model;
    model.family = family;
    model.layers = 6;
    if (family == SyntheticFamily::kOpt) model.kv_heads = model.heads;
    if (family == SyntheticFamily::kFalcon) model.kv_heads = 1;
    const std::string folder = WriteBoth(model, "own_head_f32", {});
    const auto tied = LogitsOf(folder);
    FolderBuilder head(folder + "_head");
    std::string rows;  // twice the embedding: all logits are twice what they were
    const auto file = *OpenModelFile(folder);
    const FileTensor& embedding = **file->FindTensor("token_embd.weight");
    for (size_t at = 0; at < embedding.data.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, embedding.data.data() + at, sizeof value);
      value *= 2;
      rows.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    head.Tensor("lm_head.weight", "F32", {embedding.rows(), embedding.columns()}, rows);
    head.WriteTensors();
    AddShard(folder, head.path() + "/model.safetensors", "lm_head.weight");
    auto doubled = tied;
    constexpr char kCap[] = "gemma2.final_logit_softcapping";  // behind the head
    const bool capped = file->Has(kCap);
    const float cap = capped ? static_cast<float>(*file->GetFloat(kCap)) : 1;
    for (std::vector<float>& row : doubled) {
      for (float& value : row) value = capped ? cap * std::tanh(2 * std::atanh(value / cap)) : 2 * value;
    }
    const auto logits = LogitsOf(folder);
    for (size_t row = 0; row < logits.size(); ++row) {
      EXPECT_THAT(logits[row], ::testing::Pointwise(::testing::FloatNear(capped ? 1e-4f : 0), doubled[row]))
          << "family " << static_cast<int>(family);
    }
  }
}

// Each family, with what its folders say in other words.
std::vector<SyntheticModel> AllFamilies() {
  std::vector<SyntheticModel> models;
  for (const SyntheticFamily family : kSyntheticFamilies) {
    SyntheticModel& model = models.emplace_back();
    model.family = family;
    model.layers = 6;
    model.context_length = 64;
    if (family == SyntheticFamily::kOpt) model.kv_heads = model.heads;
    if (family == SyntheticFamily::kFalcon) model.kv_heads = 1;
    if (family != SyntheticFamily::kFalcon && family != SyntheticFamily::kOpt) {
      model.head_dim = 24;
      model.window = 8;
    }
  }
  SyntheticModel part;
  part.family = SyntheticFamily::kPhi3;
  part.rotated = 12;
  models.push_back(part);
  SyntheticModel biased;
  biased.biases = true;
  biased.scaling = SyntheticScaling::kYarn;
  models.push_back(biased);
  SyntheticModel large = biased;
  large.family = SyntheticFamily::kFalcon;
  large.two_norms = true;
  large.scaling = SyntheticScaling::kLinear;
  models.push_back(large);
  return models;
}

TEST(FolderModel, FamiliesLogitsAreThoseOfTheirGgufFiles) {
  for (const SyntheticModel& model : AllFamilies()) {
    std::string gguf;
    const std::string folder = WriteBoth(model, "family_f32", {}, &gguf);
    const auto logits = LogitsOf(folder), expected = LogitsOf(gguf);
    // What Gemma's norms lack is taken from them and added to them again, and rounded.
    const bool gemma = model.family == SyntheticFamily::kGemma2 || model.family == SyntheticFamily::kGemma3;
    for (size_t row = 0; row < expected.size(); ++row) {
      EXPECT_THAT(logits[row], ::testing::Pointwise(::testing::FloatNear(gemma ? 1e-4f : 0), expected[row]))
          << (*OpenGguf(gguf))->path() << " family " << static_cast<int>(model.family);
    }
  }
}

TEST(FolderModel, TypesOf16BitsLieUnaligned) {
  for (const WeightType type : {WeightType::kF16, WeightType::kBF16}) {
    const std::string aligned = WriteBoth(GroupedModel(), "aligned", {.type = type});
    const std::string unaligned = WriteBoth(GroupedModel(), "unaligned", {.type = type, .spaces = 1});
    const auto data = reinterpret_cast<uintptr_t>((*OpenModelFile(aligned))->tensors().front().data.data());
    const auto moved = reinterpret_cast<uintptr_t>((*OpenModelFile(unaligned))->tensors().front().data.data());
    EXPECT_NE(data % 2, moved % 2);
    const auto logits = LogitsOf(aligned);
    EXPECT_EQ(LogitsOf(unaligned), logits);
    // Near the f32 model's: norms, too, were read as their type says.
    const auto exact = LogitsOf(WriteBoth(GroupedModel(), "exact", {}));
    for (size_t row = 0; row < exact.size(); ++row) {
      EXPECT_THAT(logits[row],
                  ::testing::Pointwise(::testing::FloatNear(type == WeightType::kF16 ? 0.02f : 0.15f), exact[row]));
    }
  }
}

TEST(FolderModel, ShapesThatContradictTheConfigNameTheFolderTensor) {
  const std::string folder = WriteBoth(GroupedModel(), "shapes", {});
  FolderBuilder other(folder + "_other");
  other.Text("config.json", R"({"model_type":"llama","num_hidden_layers":1,"hidden_size":8,"intermediate_size":8,
      "num_attention_heads":2,"num_key_value_heads":2,"max_position_embeddings":16,"rms_norm_eps":1e-5,
      "tie_word_embeddings":true})");
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    const std::vector<int64_t> shape = columns == 0 ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, columns};
    other.Tensor(name, "F32", shape, std::string(rows * std::max<int64_t>(columns, 1) * sizeof(float), '\0'));
  };
  add("embed_tokens.weight", 16, 8);
  add("norm.weight", 8, 0);
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    add(std::string("layers.0.self_attn.") + name + ".weight", 8, 8);
  }
  for (const char* name : {"gate_proj", "up_proj"}) add(std::string("layers.0.mlp.") + name + ".weight", 8, 8);
  add("layers.0.mlp.down_proj.weight", 8, 9);
  for (const char* name : {"input", "post_attention"}) add(std::string("layers.0.") + name + "_layernorm.weight", 8, 0);
  other.WriteTensors();
  const auto device = LoadForTest(folder, DType::kF32, 1).device;
  const auto model = LoadModel(*OpenModelFile(other.path()), device, kUsePrefill | kUseDecode, [](int, int) {});
  EXPECT_THAT(std::string(model.status().message()),
              ::testing::AllOf(::testing::HasSubstr("model.safetensors: layers.0.mlp.down_proj.weight"),
                               ::testing::HasSubstr("is [9, 8], the model's keys say [8, 8]")));
}

}  // namespace
}  // namespace runahead
