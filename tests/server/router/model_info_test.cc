// What the router says of a model, and what it takes and gives for it.
#include "server/router/model_info.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/router/validation.h"
#include "server/tokenizer/text_stream.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/utf8.h"
#include "tests/testing/parsed_gguf.h"
#include "tests/testing/tokenizer_json.h"

namespace runahead {
namespace {

// A model whose table of tokens has so many rows.
absl::StatusOr<ModelInfo> OfRows(int64_t rows, const std::string& name = "tiny") {
  GgufBuilder file;
  file.AddString("general.architecture", "llama");
  file.AddString("general.name", name);
  file.AddUint32("llama.context_length", 1 << 20);
  file.AddTensor("token_embd.weight", WeightType::kF32, {1, rows}, std::string(rows * sizeof(float), '\0'));
  const auto parsed = ParseGguf(file.Build());
  if (!parsed.ok()) return parsed.status();
  return ReadModelInfo(**parsed);
}

TEST(ModelInfo, AFileWithoutANameIsCalledAsItsArchitecture) {
  EXPECT_EQ(OfRows(1)->name, "tiny");
  EXPECT_EQ(OfRows(1, "")->name, "llama");
}

class OwnOutput : public ::testing::TestWithParam<std::string> {};

// Any row of a head may be drawn, whether it is of a token or pads the table.
TEST_P(OwnOutput, IsValidInput) {
  const std::string path = absl::StrCat("tests/golden/data/tokenizers/", GetParam(), ".json");
  std::ifstream in(path);
  ASSERT_TRUE(in) << path << " cannot be read; the test runs in the repository's root";
  const auto tokenizer = Tokenizer::FromModel(**ModelOfTokenizerJson(nlohmann::json::parse(in)["tokenizer"].dump()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const int64_t padding : {0, 1, 127}) {
    const int64_t rows = (*tokenizer)->vocab_size() + padding;
    const auto model = OfRows(rows);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->vocabulary_size, rows);
    v1::GenerateRequest request;
    v1::DetokenizeRequest detokenize;
    TextStream stream(*tokenizer, /*skip_special=*/false);
    std::string text;
    for (int32_t id = 0; id < rows; ++id) {
      request.mutable_token_ids()->add_ids(id);
      request.add_output_ids(id);
      request.mutable_stop()->mutable_stop_ids()->Clear();
      request.mutable_stop()->add_stop_ids(id);
      detokenize.add_ids(id);
      text += stream.Feed(id);
    }
    text += stream.Finish();
    EXPECT_EQ(ValidateRequest(request, *model, /*experiments=*/false), absl::OkStatus());
    EXPECT_EQ(ValidateDetokenize(detokenize, *model), absl::OkStatus());
    EXPECT_EQ(CheckTokens("prompt", request.token_ids().ids(), *model), absl::OkStatus());
    EXPECT_EQ(ReplaceInvalidUtf8(text), text);
    EXPECT_EQ((*tokenizer)->Decode(detokenize.ids(), /*skip_special=*/false), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OwnOutput,
                         ::testing::Values("gpt2", "opt", "llama3", "qwen2", "smollm", "falcon", "llama2", "mistral",
                                           "phi3", "gemma", "unigram", "unigram_unknown"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace runahead
