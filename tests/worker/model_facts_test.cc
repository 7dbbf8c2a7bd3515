#include "worker/model_facts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/testing/model_fixture.h"
#include "tests/testing/synthetic_folder.h"

namespace runahead {
namespace {

SyntheticModel Quantised(uint64_t seed) {
  SyntheticModel model;
  model.seed = seed;
  model.SetWeightType(WeightType::kQ8_0);
  return model;
}

TEST(ModelFacts, SayWhatTheFileHas) {
  const std::string path = WriteSynthetic(Quantised(1), "model_facts");
  const auto opened = OpenModel(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->facts.mostly_quantised);
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
  EXPECT_LT(opened->facts.tensor_bytes, size);
  EXPECT_GT(opened->facts.tensor_bytes, size / 2);
  EXPECT_EQ(OpenModel(path)->facts.identity, opened->facts.identity);
  EXPECT_FALSE(OpenModel(path + "none").ok());
}

TEST(ModelFacts, Int8IsForFilesWithAQuantisedMatrix) {
  SyntheticModel model;
  const std::string f32 = WriteSynthetic(model, "model_facts_f32");
  const absl::Status none = OpenModel(f32)->facts.takes_int8;
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(none.message(),
            "int8 multiplies quantised weights, and the matrices of " + f32 + " are F32: give auto, f32 or bf16");
  model.embedding_type = WeightType::kQ8_0;
  const ModelFacts some = OpenModel(WriteSynthetic(model, "model_facts_some"))->facts;
  EXPECT_FALSE(some.mostly_quantised);
  EXPECT_TRUE(some.takes_int8.ok());
}

// Whose headers, and so fingerprints, are the same.
TEST(ModelFacts, ModelsThatDifferInWeightsAloneAreTwo) {
  const std::string path = WriteSynthetic(Quantised(1), "model_facts"), other = WriteSynthetic(Quantised(2), "other");
  const auto before = *OpenModel(path);
  EXPECT_EQ(OpenModel(other)->file->fingerprint(), before.file->fingerprint());
  EXPECT_NE(OpenModel(other)->facts.identity, before.facts.identity);
  std::filesystem::rename(other, path);
  EXPECT_NE(OpenModel(path)->facts.identity, before.facts.identity);
}

// Who writes anew any file of a folder, its weights or what says how they are used, has another model.
TEST(ModelFacts, FoldersAreAllTheirFiles) {
  const std::string gguf = WriteSynthetic(SyntheticModel{}, "facts"), path = testing::TempDir() + "facts_folder";
  WriteSyntheticFolder(*OpenModel(gguf)->file, path, {.type = WeightType::kBF16, .shards = 2});
  const auto before = *OpenModel(path);
  EXPECT_FALSE(before.facts.mostly_quantised);
  EXPECT_EQ(2 * before.facts.tensor_bytes, OpenModel(gguf)->facts.tensor_bytes);
  EXPECT_FALSE(before.facts.identity.empty());
  EXPECT_LT(before.facts.identity.size(), 100u);
  EXPECT_EQ(OpenModel(path)->facts.identity, before.facts.identity);
  for (const char* name : {"/config.json", "/model-00001-of-00002.safetensors", "/model-00002-of-00002.safetensors"}) {
    const auto old = *OpenModel(path);
    std::filesystem::copy_file(path + name, path + "/copy");
    std::filesystem::rename(path + "/copy", path + name);
    const auto now = OpenModel(path);
    ASSERT_TRUE(now.ok()) << now.status();
    EXPECT_EQ(now->file->fingerprint(), old.file->fingerprint());
    EXPECT_NE(now->facts.identity, old.facts.identity) << name;
  }
}

}  // namespace
}  // namespace runahead
