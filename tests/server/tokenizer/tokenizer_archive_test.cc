#include "server/tokenizer/tokenizer_archive.h"

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/chat_template.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/testing/folder_builder.h"
#include "tests/testing/golden_vocabulary.h"
#include "tests/testing/synthetic_folder.h"
#include "tests/testing/synthetic_gguf.h"
#include "tests/testing/tokenizer_json.h"
#include "tests/testing/zip_entries.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Key;
using testing::UnorderedElementsAre;

using Files = std::map<std::string, std::string>;

Files FilesOf(const ModelFile& file) {
  const auto archive = TokenizerArchive(file);
  EXPECT_TRUE(archive.ok()) << archive.status();
  return archive.ok() ? ZipEntries(*archive) : Files();
}

constexpr char kShortTemplate[] = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";

// Llama 2's golden vocabulary, and keys that such files have.
GgufBuilder LlamaKeys() {
  GgufBuilder builder;
  AddGoldenVocabulary("llama2", builder);
  builder.AddUint32("llama.context_length", 2048);
  builder.AddUint32("tokenizer.ggml.eos_token_id", 2);
  builder.AddUint32("tokenizer.ggml.unknown_token_id", 0);
  builder.AddString("tokenizer.chat_template", kShortTemplate);
  return builder;
}

TEST(TokenizerArchive, OfAGgufFileSaysWhatItsKeysSay) {
  const Files files = FilesOf(**ParseGguf(LlamaKeys().Build()));
  EXPECT_THAT(files, UnorderedElementsAre(Key("tokenizer.json"), Key("tokenizer_config.json"), Key("config.json")));
  EXPECT_EQ(json::parse(files.at("tokenizer_config.json")), json::parse(R"({
      "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
      "pad_token": "",
      "add_bos_token": true, "add_eos_token": false, "clean_up_tokenization_spaces": false, "model_max_length": 2048,
      "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"})"));
  EXPECT_EQ(json::parse(files.at("config.json")), json::parse(R"({
      "model_type": "llama", "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": [2]})"));
}

TEST(TokenizerArchive, IsReadAsTheModelThatItIsOf) {
  const auto file = *ParseGguf(LlamaKeys().Build());
  const auto tokenizer = *Tokenizer::FromModel(*file);
  Files files = FilesOf(*file);
  GgufBuilder builder;
  builder.AddString("tokenizer.huggingface.json", files["tokenizer.json"]);
  builder.AddString("tokenizer.huggingface.config", files["tokenizer_config.json"]);
  builder.AddString("tokenizer.chat_template", json::parse(files["tokenizer_config.json"])["chat_template"]);
  const auto read = *ParseGguf(builder.Build());
  const auto again = *Tokenizer::FromModel(*read);
  EXPECT_EQ(again->bos_id(), tokenizer->bos_id());
  EXPECT_EQ(again->eos_id(), tokenizer->eos_id());
  EXPECT_EQ(again->end_ids(), tokenizer->end_ids());
  EXPECT_EQ(*again->Encode("It's a  test."), *tokenizer->Encode("It's a  test."));
  Chat chat;
  chat.messages.push_back({"user", "hello"});
  EXPECT_EQ(*ChatTemplate::FromModel(*read, *again)->Render(chat), "<s>hello</s>");
}

TEST(TokenizerArchive, OfAModelWithItsOwnTokenizerHasThatAsItIs) {
  const std::string own = absl::StrCat(GoldenTokenizerJson("gpt2"), " ");
  GgufBuilder builder;
  builder.AddString("general.architecture", "gpt2");
  builder.AddString("tokenizer.huggingface.json", own);
  builder.AddString("tokenizer.chat_template", kShortTemplate);
  const Files files = FilesOf(**ParseGguf(builder.Build()));
  EXPECT_EQ(files.at("tokenizer.json"), own);
  EXPECT_EQ(files.at("chat_template.jinja"), kShortTemplate);
  EXPECT_EQ(json::parse(files.at("tokenizer_config.json"))["tokenizer_class"], "PreTrainedTokenizerFast");
}

TEST(TokenizerArchive, OfAFolderHasItsOwnFiles) {
  const std::string gguf = testing::TempDir() + "/archive.gguf", path = testing::TempDir() + "/archive";
  ASSERT_TRUE(WriteSyntheticGguf({}, gguf).ok());
  WriteSyntheticFolder(**OpenModelFile(gguf), path);
  const std::string tokenizer = GoldenTokenizerJson("gpt2");
  const Files own = {{"tokenizer.json", tokenizer},
                     {"tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})"},
                     {"special_tokens_map.json", R"({"pad_token": "<|endoftext|>"})"},
                     {"chat_template.jinja", kShortTemplate}};
  const auto write = [&path](const std::string& name, const std::string& text) {
    std::ofstream(path + "/" + name) << text;
  };
  for (const auto& [name, text] : own) write(name, text);
  write("vocab.json", "{}");
  const auto file = OpenModelFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const Files files = FilesOf(**file);
  for (const auto& [name, text] : own) EXPECT_EQ(files.at(name), text) << name;
  EXPECT_THAT(files,
              UnorderedElementsAre(Key("tokenizer.json"), Key("tokenizer_config.json"), Key("special_tokens_map.json"),
                                   Key("chat_template.jinja"), Key("config.json"), Key("generation_config.json")));
}

GgufBuilder TwiceTheSameToken() {
  GgufBuilder builder;
  builder.AddString("tokenizer.ggml.model", "gpt2");
  builder.AddStrings("tokenizer.ggml.tokens", {"a", "b", "a"});
  builder.AddStrings("tokenizer.ggml.merges", {});
  return builder;
}

TEST(TokenizerArchive, NamesTheFileWhoseVocabularyCannotBeSaid) {
  const absl::Status status = TokenizerArchive(**ParseGguf(TwiceTheSameToken().Build())).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("test.gguf: the vocabulary cannot be said in a tokenizer.json"));
}

}  // namespace
}  // namespace runahead
