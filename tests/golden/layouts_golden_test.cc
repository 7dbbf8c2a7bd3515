// A checkpoint in the forms in which folders and GGUF files are found, against transformers (make_layouts.py).
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/model_fixture.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pointwise;

const std::string kLayouts = "tests/golden/data/layouts/";

class LayoutsGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in(kLayouts + "golden.json");
    ASSERT_TRUE(in) << kLayouts << "golden.json cannot be read; the test runs in the repository's root";
    golden_ = nlohmann::json::parse(in);
  }
  nlohmann::json golden_;
};

TEST_F(LayoutsGolden, LogitsAreThoseOfTransformers) {
  ASSERT_EQ(golden_["logits"].size(), 4u);
  for (const auto& [name, rows] : golden_["logits"].items()) {
    const LoadedModel loaded = LoadForTest(kLayouts + name, DType::kF32, 1);
    SequenceRunner runner(loaded, 64);
    const auto logits = runner.Append(golden_["ids"].get<std::vector<int32_t>>(), false, true);
    ASSERT_EQ(logits.size(), rows.size());
    for (size_t row = 0; row < logits.size(); ++row) {
      EXPECT_THAT(logits[row], Pointwise(FloatNear(1e-4f), rows[row].get<std::vector<float>>())) << name;
    }
  }
}

TEST_F(LayoutsGolden, WhatIsUsedOtherwiseThanItSaysOrNotAtAllIsSaid) {
  const auto remarks = [](const char* name) {
    const std::shared_ptr<const ModelFile> file = *OpenModelFile(kLayouts + name);
    return std::vector<std::string>(file->remarks().begin(), file->remarks().end());
  };
  EXPECT_THAT(remarks("own_head"), ElementsAre(HasSubstr("lm_head.weight differs from it: that head is used")));
  EXPECT_THAT(remarks("buffers"), ElementsAre(HasSubstr(": 5 tensors are left out")));
  EXPECT_THAT(remarks("equal_head"), IsEmpty());
  EXPECT_THAT(remarks("split-00001-of-00003.gguf"), IsEmpty());
  EXPECT_EQ(*(*OpenModelFile(kLayouts + "buffers"))->GetString("tokenizer.chat_template"), golden_["template"]);
}

}  // namespace
}  // namespace runahead
