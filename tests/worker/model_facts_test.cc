#include "worker/model_facts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/testing/model_fixture.h"

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

// Whose headers, and so fingerprints, are the same.
TEST(ModelFacts, ModelsThatDifferInWeightsAloneAreTwo) {
  const std::string path = WriteSynthetic(Quantised(1), "model_facts"), other = WriteSynthetic(Quantised(2), "other");
  const auto before = *OpenModel(path);
  EXPECT_EQ(OpenModel(other)->file->fingerprint(), before.file->fingerprint());
  EXPECT_NE(OpenModel(other)->facts.identity, before.facts.identity);
  std::filesystem::rename(other, path);
  EXPECT_NE(OpenModel(path)->facts.identity, before.facts.identity);
}

}  // namespace
}  // namespace runahead
