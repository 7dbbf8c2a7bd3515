#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/format/tiny_folder.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(FolderTexts, VocabularyIsPassedOn) {
  const FolderBuilder folder = TinyFolder("vocabulary", R"(,"bos_token_id":1,"eos_token_id":7)");
  folder.WriteTensors();
  auto file = *OpenFolder(folder.path());
  EXPECT_THAT(*file->GetInts("tokenizer.ggml.eos_token_ids"), ElementsAre(7));
  EXPECT_EQ(*file->GetUint("tokenizer.ggml.bos_token_id"), 1u);
  EXPECT_EQ(file->GetString("tokenizer.huggingface.json").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(file->GetString("tokenizer.huggingface.json").status().message(), folder.path() + " has no tokenizer.json");
  EXPECT_FALSE(file->Has("tokenizer.chat_template"));

  folder.Text("tokenizer.json", "any \xff text");
  folder.Text("generation_config.json", R"({"eos_token_id":[2,3]})");
  folder.Text("tokenizer_config.json", R"({"chat_template":"{{ a }}"})");
  file = *OpenFolder(folder.path());
  folder.Text("special_tokens_map.json", "{}");
  file = *OpenFolder(folder.path());
  EXPECT_EQ(*file->GetString("tokenizer.huggingface.special_tokens_map"), "{}");
  EXPECT_EQ(*file->GetString("tokenizer.huggingface.json"), "any \xff text");
  EXPECT_EQ(*file->GetString("tokenizer.huggingface.config"), R"({"chat_template":"{{ a }}"})");
  EXPECT_THAT(*file->GetInts("tokenizer.ggml.eos_token_ids"), ElementsAre(2, 3));
  EXPECT_EQ(*file->GetString("tokenizer.chat_template"), "{{ a }}");

  folder.Text("tokenizer_config.json", R"({"chat_template":[{"name":"tool_use","template":"t"},
      {"name":"default","template":"d"},{"name":"rag","template":"r"}]})");
  EXPECT_EQ(*(*OpenFolder(folder.path()))->GetString("tokenizer.chat_template"), "d");
  EXPECT_EQ(*(*OpenFolder(folder.path()))->GetString("tokenizer.chat_template.tool_use"), "t");
  folder.Text("chat_template.jinja", "own file");
  EXPECT_EQ(*(*OpenFolder(folder.path()))->GetString("tokenizer.chat_template"), "own file");
}

TEST(FolderTexts, ANameThatCannotBeShownIsKeptAsOneThatCan) {
  const FolderBuilder by_key = TinyFolder("named", R"(,"_name_or_path":"a/Some \u001b[31mmodel")");
  by_key.WriteTensors();
  EXPECT_EQ(*(*OpenFolder(by_key.path()))->GetString("general.name"), "Some \\x1b[31mmodel");
  const FolderBuilder by_folder = TinyFolder("mod\xe8le");
  by_folder.WriteTensors();
  EXPECT_EQ(*(*OpenFolder(by_folder.path()))->GetString("general.name"), "mod\\xe8le");
}

TEST(FolderTexts, TokenIdsThatAreNoneAreRefused) {
  const FolderBuilder folder = TinyFolder("no_ids", R"(,"bos_token_id":null,"eos_token_id":null)");
  folder.WriteTensors();
  const auto file = *OpenFolder(folder.path());
  EXPECT_FALSE(file->Has("tokenizer.ggml.bos_token_id"));
  EXPECT_FALSE(file->Has("tokenizer.ggml.eos_token_ids"));
  for (const char* ids : {"-1", "1.5", "[1,-2]", "\"2\"", "[[2]]"}) {
    folder.Text("generation_config.json", absl::StrCat(R"({"eos_token_id":)", ids, "}"));
    EXPECT_THAT(FolderRefusal(folder), HasSubstr("/generation_config.json: key eos_token_id"));
  }
}

// The order is that of transformers' tokenizers; chat_template.json is of its processors.
TEST(FolderTexts, ChatTemplatesComeFromAllTheFilesThatHaveThem) {
  const FolderBuilder folder = TinyFolder("templates");
  folder.WriteTensors();
  const auto chat_template = [&](const char* key = "tokenizer.chat_template") {
    return *(*OpenFolder(folder.path()))->GetString(key);
  };
  folder.Text("chat_template.json", R"({"chat_template":"of the processor"})");
  EXPECT_EQ(chat_template(), "of the processor");
  folder.Text("tokenizer_config.json", R"({"chat_template":"of the tokenizer"})");
  EXPECT_EQ(chat_template(), "of the tokenizer");
  folder.Text("chat_template.jinja", "own file");
  EXPECT_EQ(chat_template(), "own file");
  std::filesystem::create_directory(folder.path() + "/additional_chat_templates");
  folder.Text("additional_chat_templates/tool_use.jinja", "with tools");
  EXPECT_EQ(chat_template("tokenizer.chat_template.tool_use"), "with tools");
  EXPECT_EQ(chat_template(), "own file");
  folder.Text("additional_chat_templates/default.jinja", "by name");
  EXPECT_EQ(chat_template(), "by name");
}

TEST(FolderTexts, FilesOfTemplatesTakeThePlaceOfAllThatTheConfigurationSays) {
  const FolderBuilder folder = TinyFolder("no_default");
  folder.WriteTensors();
  folder.Text("tokenizer_config.json", R"({"chat_template":[{"name":"default","template":"d"},
      {"name":"tool_use","template":"t"}]})");
  std::filesystem::create_directory(folder.path() + "/additional_chat_templates");
  folder.Text("additional_chat_templates/rag.jinja", "r");
  const auto file = *OpenFolder(folder.path());
  EXPECT_FALSE(file->Has("tokenizer.chat_template.tool_use"));
  EXPECT_EQ(file->GetString("tokenizer.chat_template").status().message(),
            folder.path() + " has no chat template by default, in chat_template.jinja");
}

TEST(FolderTexts, ATemplateThatCannotBeUsedLeavesTheModelWithoutOne) {
  const FolderBuilder folder = TinyFolder("unusable_templates");
  folder.WriteTensors();
  const auto file = [&](const char* text) {
    folder.Text("chat_template.json", text);
    return *OpenFolder(folder.path());
  };
  for (const char* text :
       {"{}", "[]", R"({"chat_template":7})", R"({"chat_template":[{"name":"rag","template":"r"},7]})",
        R"({"chat_template":{"default":null}})"}) {
    EXPECT_EQ(file(text)->GetString("tokenizer.chat_template").status().message(),
              folder.path() + "/chat_template.json: key chat_template has no template")
        << text;
  }
  EXPECT_THAT(std::string(file("{")->GetString("tokenizer.chat_template").status().message()),
              HasSubstr("/chat_template.json: the text is not JSON"));
  const auto list = file(R"({"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})");
  EXPECT_EQ(*list->GetString("tokenizer.chat_template"), "d");
  EXPECT_EQ(*list->GetString("tokenizer.chat_template.tool_use"), "t");
  EXPECT_EQ(*file(R"({"chat_template":{"default":"d"}})")->GetString("tokenizer.chat_template"), "d");
  std::filesystem::remove(folder.path() + "/chat_template.json");
  EXPECT_EQ((*OpenFolder(folder.path()))->GetString("tokenizer.chat_template").status().message(),
            folder.path() + " has no chat template");
}

TEST(FolderTexts, TextsThatAreNoJsonAreNamed) {
  FolderBuilder folder = TinyFolder("texts");
  folder.WriteTensors();
  for (const char* name : {"generation_config.json", "tokenizer_config.json", "config.json"}) {
    folder.Text(name, "{\"a\":");
    EXPECT_THAT(FolderRefusal(folder), HasSubstr(absl::StrCat("/", name, ": the text is not JSON at byte 6")));
    folder.Text(name, std::string(1'000'000, '['));
    EXPECT_THAT(FolderRefusal(folder), HasSubstr(absl::StrCat("/", name, ": the text is nested deeper than 32")));
    folder.Text(name, "");
    EXPECT_THAT(FolderRefusal(folder), HasSubstr(absl::StrCat("/", name, " is empty")));
    std::filesystem::remove(folder.path() + "/" + name);
    ASSERT_EQ(mkfifo((folder.path() + "/" + name).c_str(), 0600), 0);
    EXPECT_THAT(FolderRefusal(folder), HasSubstr(absl::StrCat("/", name, " is not a regular file")));
    std::filesystem::remove(folder.path() + "/" + name);
  }
}

TEST(FolderTexts, AnEndBehindPromptsIsSaidToHaveNoEffect) {
  const FolderBuilder folder = TinyFolder("add_eos");
  folder.WriteTensors();
  const auto remarks = [&](const char* config) {
    folder.Text("tokenizer_config.json", config);
    const auto file = *OpenFolder(folder.path());
    return std::vector<std::string>(file->remarks().begin(), file->remarks().end());
  };
  EXPECT_THAT(remarks(R"({"add_eos_token":false})"), ElementsAre());
  EXPECT_THAT(remarks(R"({"add_eos_token":null})"), ElementsAre());
  for (const bool own_template : {false, true}) {
    if (own_template) folder.Text("chat_template.jinja", "own file");
    EXPECT_THAT(remarks(R"({"add_eos_token":true})"),
                ElementsAre(AllOf(StartsWith(folder.path() + "/tokenizer_config.json: add_eos_token has no effect"),
                                  HasSubstr("a prompt is continued"))));
  }
}

}  // namespace
}  // namespace runahead
