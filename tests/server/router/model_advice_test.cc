#include "server/router/model_advice.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/synthetic_folder.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/format/gguf.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(ModelAdvice, ATemplateTeachesAFormOfCalls) {
  EXPECT_EQ(ToolFormatOfTemplate("{{ '<tool_call>' + call + '</tool_call>' }}"), "hermes");
  EXPECT_EQ(ToolFormatOfTemplate("{{ '<|python_tag|>' }}"), "llama3");
  EXPECT_EQ(ToolFormatOfTemplate(R"(Respond in the format {"name": function name, "parameters": dictionary of )"
                                 "argument name and its value}"),
            "llama3");
  EXPECT_EQ(ToolFormatOfTemplate("{{ messages[0].content }}"), "");
}

TEST(ModelAdvice, ATemplateMayThinkAndMayBeginTheThought) {
  EXPECT_EQ(
      ReasoningFormatOfTemplate("{{ content.split('</think>')[-1] }}{% if add_generation_prompt %}<A>{% endif %}"),
      "think");
  EXPECT_EQ(ReasoningFormatOfTemplate("{% if add_generation_prompt %}{{ '<A><think>\\n' }}{% endif %}"), "think_open");
  // Qwen 3: an empty thought, where none is wanted.
  EXPECT_EQ(ReasoningFormatOfTemplate("{% if add_generation_prompt %}<A>{% if not enable_thinking %}{{ "
                                      "'<think></think>' }}{% endif %}{% endif %}"),
            "think");
  EXPECT_EQ(ReasoningFormatOfTemplate("{{ messages[0].content }}"), "");
}

TEST(ModelAdvice, AGenerationConfigRecommendsSampling) {
  const auto some = ParseGenerationConfig(
      R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "min_p": null})",
      "c");
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_FLOAT_EQ(some->temperature(), 0.7f);
  EXPECT_FLOAT_EQ(some->top_p(), 0.8f);
  EXPECT_EQ(some->top_k(), 20);
  EXPECT_FLOAT_EQ(some->repetition_penalty(), 1.05f);
  EXPECT_FALSE(some->has_min_p());
  const auto greedy = ParseGenerationConfig(R"({"do_sample": false, "temperature": 0.7})", "c");
  ASSERT_TRUE(greedy.ok());
  EXPECT_TRUE(greedy->has_temperature());
  EXPECT_EQ(greedy->temperature(), 0);
  const auto nothing = ParseGenerationConfig(R"({"eos_token_id": 2})", "c");
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(nothing->ByteSizeLong(), 0u);
}

TEST(ModelAdvice, AGenerationConfigThatNoRequestCouldCarryIsNamed) {
  for (const auto& [text, word] : {std::pair(R"({"temperature": -1})", "temperature"),
                                   {R"({"top_p": 2})", "top_p"},
                                   {R"({"top_k": "many"})", "top_k"},
                                   {"[", "config.json"}}) {
    const absl::Status status = ParseGenerationConfig(text, "config.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

TEST(ModelAdvice, AFolderIsReadWithItsGenerationConfig) {
  const std::string base = absl::StrCat(::testing::TempDir(), "/model_advice_", getpid());
  ASSERT_TRUE(WriteSyntheticGguf(SyntheticModel(), base + ".gguf").ok());
  const auto file = OpenGguf(base + ".gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  WriteSyntheticFolder(**file, base);
  std::ofstream(base + "/generation_config.json") << R"({"temperature": 0.5})";
  const auto folder = OpenModelFile(base);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(ReadModelAdvice(**folder).sampling.temperature(), 0.5f);
  std::ofstream(base + "/generation_config.json") << R"({"temperature": -5})";
  EXPECT_FALSE(ReadModelAdvice(**folder).sampling.has_temperature());
  std::filesystem::remove(base + "/generation_config.json");
  EXPECT_FALSE(ReadModelAdvice(**folder).sampling.has_temperature());
  EXPECT_FALSE(ReadModelAdvice(**file).sampling.has_temperature());
  std::filesystem::remove_all(base);
  std::filesystem::remove(base + ".gguf");
}

}  // namespace
}  // namespace runahead
