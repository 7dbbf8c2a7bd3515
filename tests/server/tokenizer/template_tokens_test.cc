#include "server/tokenizer/template_tokens.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/parsed_gguf.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::HasSubstr;

// "name=token " for each, "name=[token,token,] " where it is a list. All of it must be the template's own.
std::string Shown(const ChatVariables& variables) {
  const auto text = [](const jinja::Value& value) {
    EXPECT_TRUE(Parts(*jinja::As<MarkedText>(value))[0].parse_special);
    return ToUtf8(*jinja::As<MarkedText>(value));
  };
  std::string shown;
  for (const auto& [name, value] : variables) {
    absl::StrAppend(&shown, name, "=");
    if (const jinja::List* list = jinja::As<jinja::List>(value)) {
      shown += "[";
      for (const jinja::Value& item : list->items) absl::StrAppend(&shown, text(item), ",");
      shown += "] ";
    } else {
      absl::StrAppend(&shown, text(value), " ");
    }
  }
  return shown;
}

// The synthetic vocabulary, and what else `add` puts beside it.
template <typename F>
std::shared_ptr<const ModelFile> FileWith(F add) {
  const SyntheticVocabulary vocabulary = MakeSyntheticVocabulary(300);
  GgufBuilder builder;
  builder.AddString("tokenizer.ggml.model", "gpt2");
  builder.AddString("tokenizer.ggml.pre", "smollm");
  builder.AddStrings("tokenizer.ggml.tokens", vocabulary.tokens);
  builder.AddInts("tokenizer.ggml.token_type", vocabulary.types);
  builder.AddStrings("tokenizer.ggml.merges", vocabulary.merges);
  add(builder);
  return *ParseGguf(builder.Build());
}

TEST(TemplateTokens, OfAGgufFileTheyAreThoseOfItsKeys) {
  const auto file = FileWith([](GgufBuilder& builder) {
    builder.AddUint32("tokenizer.ggml.padding_token_id", 0);
    builder.AddUint32("tokenizer.ggml.seperator_token_id", 1);
    builder.AddUint32("tokenizer.ggml.mask_token_id", 300);  // none of the vocabulary
  });
  const auto tokenizer = *Tokenizer::FromModel(*file);
  const std::string shown = Shown(*TemplateTokens(*file, *tokenizer));
  EXPECT_THAT(shown, HasSubstr(absl::StrCat("pad_token=", std::string(tokenizer->TokenBytes(0)), " ")));
  EXPECT_THAT(shown, HasSubstr(absl::StrCat("sep_token=", std::string(tokenizer->TokenBytes(1)), " ")));
  EXPECT_THAT(shown, testing::Not(HasSubstr("mask_token")));
}

class FolderTokens : public testing::Test {
 protected:
  // The tokens of a folder that has these texts; an empty text is no file.
  static absl::StatusOr<ChatVariables> Of(const std::string& config, const std::string& map = "") {
    const auto file = FileWith([&](GgufBuilder& builder) {
      builder.AddString("tokenizer.huggingface.json", "{}");
      if (!config.empty()) builder.AddString("tokenizer.huggingface.config", config);
      if (!map.empty()) builder.AddString("tokenizer.huggingface.special_tokens_map", map);
    });
    const auto words = FileWith([](GgufBuilder& builder) { builder.AddUint32("tokenizer.ggml.bos_token_id", 1); });
    return TemplateTokens(*file, **Tokenizer::FromModel(*words));
  }
};

TEST_F(FolderTokens, ConfigurationAndMapAreReadAsTransformersDoes) {
  const std::string config = R"("bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":null)";
  const std::string map = R"({"pad_token":{"content":"<pad>"},"eos_token":"<e>","additional_special_tokens":["<a>"]})";
  EXPECT_EQ(Shown(*Of("{" + config + "}")), "bos_token=<s> eos_token=</s> ");
  EXPECT_EQ(Shown(*Of("{" + config + "}", map)),
            "additional_special_tokens=[<a>,] bos_token=<s> eos_token=<e> pad_token=<pad> ");
  EXPECT_EQ(Shown(*Of("{" + config + R"(,"added_tokens_decoder":{}})", map)), "bos_token=<s> eos_token=</s> ");
  EXPECT_EQ(Shown(*Of("{" + config + R"(,"extra_special_tokens":{"image_token":"<i>"}})")),
            "bos_token=<s> eos_token=</s> image_token=<i> ");
}

TEST_F(FolderTokens, EndsThatNoFileNamesAreTheTokenizers) {
  const auto words = FileWith([](GgufBuilder& builder) { builder.AddUint32("tokenizer.ggml.bos_token_id", 1); });
  const auto tokenizer = *Tokenizer::FromModel(*words);
  EXPECT_THAT(Shown(*Of("")), HasSubstr(absl::StrCat("bos_token=", std::string(tokenizer->TokenBytes(1)), " ")));
  EXPECT_THAT(Shown(*Of(R"({"bos_token":null})")), testing::Not(HasSubstr("bos_token")))
      << "which says that it has none";
}

TEST_F(FolderTokens, WhatIsNoJsonIsNamed) {
  EXPECT_THAT(std::string(Of("{}", "{").status().message()),
              HasSubstr("/special_tokens_map.json: the text is not JSON"));
  EXPECT_THAT(std::string(Of("x").status().message()), HasSubstr("/tokenizer_config.json: the text is not JSON"));
}

}  // namespace
}  // namespace runahead
