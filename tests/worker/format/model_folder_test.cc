#include "worker/format/model_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/folder_builder.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/format/mapped_file.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr char kTinyConfig[] = R"({"model_type":"llama","num_hidden_layers":1,"hidden_size":4,"intermediate_size":2,
    "num_attention_heads":2,"num_key_value_heads":1,"max_position_embeddings":16,"rms_norm_eps":1e-5,
    "tie_word_embeddings":true)";

std::string FolderPath(const std::string& name) {
  return absl::StrCat(testing::TempDir(), name);
}

void AddF32(FolderBuilder& folder, const std::string& name, const std::vector<int64_t>& shape) {
  size_t bytes = sizeof(float);
  for (const int64_t dim : shape) bytes *= dim;
  folder.Tensor(name, "F32", shape, std::string(bytes, '\0'));
}

// A folder of the smallest llama, without its tensors' files.
FolderBuilder TinyFolder(const std::string& name, const std::string& more_config = "") {
  FolderBuilder folder(FolderPath(name));
  folder.Text("config.json", absl::StrCat(kTinyConfig, more_config, "}"));
  AddF32(folder, "model.embed_tokens.weight", {8, 4});
  AddF32(folder, "model.norm.weight", {4});
  const std::string layer = "model.layers.0.";
  AddF32(folder, layer + "self_attn.q_proj.weight", {4, 4});
  AddF32(folder, layer + "self_attn.k_proj.weight", {2, 4});
  AddF32(folder, layer + "self_attn.v_proj.weight", {2, 4});
  AddF32(folder, layer + "self_attn.o_proj.weight", {4, 4});
  AddF32(folder, layer + "mlp.gate_proj.weight", {2, 4});
  AddF32(folder, layer + "mlp.up_proj.weight", {2, 4});
  AddF32(folder, layer + "mlp.down_proj.weight", {4, 2});
  AddF32(folder, layer + "input_layernorm.weight", {4});
  AddF32(folder, layer + "post_attention_layernorm.weight", {4});
  return folder;
}

std::string FolderRefusal(const FolderBuilder& folder) {
  const auto file = OpenFolder(folder.path());
  EXPECT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), AllOf(HasSubstr(folder.path()), SizeIs(testing::Lt(600u))));
  return std::string(file.status().message());
}

TEST(ModelFolder, SaysWhatAGgufFileWouldSay) {
  FolderBuilder folder = TinyFolder("tiny");
  folder.WriteTensors();
  const auto file = OpenFolder(folder.path() + "//");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->container(), ModelFile::Container::kFolder);
  EXPECT_EQ((*file)->path(), folder.path());
  EXPECT_EQ(*(*file)->GetString("general.architecture"), "llama");
  EXPECT_EQ(*(*file)->GetString("general.name"), "tiny");
  EXPECT_EQ(*(*file)->GetUint("llama.embedding_length"), 4u);
  EXPECT_EQ(*(*file)->GetFloat("llama.attention.layer_norm_rms_epsilon"), 1e-5);
  const auto tensor = (*file)->FindTensor("blk.0.attn_k.weight");
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_THAT((*tensor)->dims, ElementsAre(4, 2));
  EXPECT_EQ((*tensor)->stored_as, folder.path() + "/model.safetensors: model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ((*file)->tensors().size(), 11u);
  EXPECT_FALSE(MostlyQuantised(**file));
}

TEST(ModelFolder, ShardsHoldWhatOneFileHolds) {
  FolderBuilder folder = TinyFolder("sharded");
  folder.WriteTensors(3);
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 11u);
  ASSERT_THAT((*file)->parts(), SizeIs(4));  // and config.json
  for (const ModelFile::Part& part : (*file)->parts()) EXPECT_EQ(FileNumbers(part.path), part.numbers);
}

TEST(ModelFolder, NamesComeFromConfigOrFolder) {
  const auto name = [](const FolderBuilder& folder) {
    folder.WriteTensors();
    return *(*OpenFolder(folder.path()))->GetString("general.name");
  };
  EXPECT_EQ(name(TinyFolder("x", R"(,"_name_or_path":"meta/Tiny-1B")")), "Tiny-1B");
  EXPECT_EQ(name(TinyFolder("x", R"(,"_name_or_path":"/home/me/tiny/")")), "tiny");
  EXPECT_EQ(name(TinyFolder("x", R"(,"_name_or_path":"")")), "x");
  EXPECT_EQ(name(TinyFolder("models--meta--Tiny-2B/snapshots/0123abcd")), "Tiny-2B");
}

TEST(ModelFolder, VocabularyIsPassedOn) {
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

TEST(ModelFolder, TokenIdsThatAreNoneAreRefused) {
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

TEST(ModelFolder, FingerprintTellsFoldersApartAndNotPaths) {
  const FolderBuilder folder = TinyFolder("one"), same = TinyFolder("two", R"(,"_name_or_path":"one")");
  const auto fingerprint = [](const FolderBuilder& of) {
    const auto file = OpenFolder(of.path());
    EXPECT_TRUE(file.ok()) << file.status();
    return (*file)->fingerprint();
  };
  folder.Text("config.json", absl::StrCat(kTinyConfig, R"(,"_name_or_path":"one"})"));
  folder.WriteTensors();
  same.WriteTensors();
  const uint64_t first = fingerprint(folder);
  EXPECT_EQ(fingerprint(same), first);
  same.WriteTensors(2);
  std::filesystem::remove(same.path() + "/model.safetensors");
  EXPECT_NE(fingerprint(same), first);
  same.WriteTensors(1, 1);  // another header
  EXPECT_NE(fingerprint(same), first);
  same.WriteTensors();
  EXPECT_EQ(fingerprint(same), first);
  same.Text("tokenizer.json", "{}");
  EXPECT_NE(fingerprint(same), first);
  std::filesystem::remove(same.path() + "/tokenizer.json");
  same.Text("config.json", absl::StrCat(kTinyConfig, R"(,"_name_or_path":"one","rope_theta":7})"));
  const uint64_t longer = fingerprint(same);
  EXPECT_NE(longer, first);
  same.Text("config.json", absl::StrCat(kTinyConfig, R"(,"_name_or_path":"one","rope_theta":8})"));  // of the same size
  EXPECT_NE(fingerprint(same), longer);
}

TEST(ModelFolder, LinksAsInHuggingFacesCacheAreFollowed) {
  const FolderBuilder blobs = TinyFolder("cache/blobs");
  blobs.WriteTensors(2);
  FolderBuilder snapshot(FolderPath("cache/snapshots/0123"));
  for (const char* name : {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "model.safetensors.index.json"}) {
    std::filesystem::create_symlink(absl::StrCat("../../blobs/", name), absl::StrCat(snapshot.path(), "/", name));
  }
  const auto file = OpenFolder(snapshot.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 11u);
}

TEST(ModelFolder, WhatIsMissingIsNamed) {
  EXPECT_THAT(FolderRefusal(FolderBuilder(FolderPath("empty"))), HasSubstr("has no config.json"));
  FolderBuilder no_weights = TinyFolder("no_weights");
  EXPECT_THAT(FolderRefusal(no_weights), HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  FolderBuilder untied = TinyFolder("untied");
  untied.Text("config.json", absl::StrReplaceAll(absl::StrCat(kTinyConfig, "}"), {{"true", "false"}}));
  untied.WriteTensors();
  EXPECT_THAT(FolderRefusal(untied), HasSubstr("tensor 'lm_head.weight' (output.weight) is missing"));
  FolderBuilder deeper = TinyFolder("deeper");
  deeper.Text("config.json",
              absl::StrReplaceAll(absl::StrCat(kTinyConfig, "}"),
                                  {{"\"num_hidden_layers\":1", "\"num_hidden_layers\":9007199254740992"}}));
  deeper.WriteTensors();
  EXPECT_THAT(FolderRefusal(deeper), HasSubstr("tensor 'model.layers.1.self_attn.q_proj.weight'"));
}

TEST(ModelFolder, TensorsThatCannotBeUsedAreNamed) {
  FolderBuilder unknown = TinyFolder("unknown");
  AddF32(unknown, "model.layers.0.self_attn.q_norm.weight", {2});
  unknown.WriteTensors();
  EXPECT_THAT(FolderRefusal(unknown), HasSubstr("model.safetensors: tensor 'model.layers.0.self_attn.q_norm.weight'"));
  FolderBuilder twice = TinyFolder("twice");
  AddF32(twice, "language_model.model.norm.weight", {4});
  twice.WriteTensors();
  EXPECT_THAT(FolderRefusal(twice), AllOf(HasSubstr("model.norm.weight and"), HasSubstr("are the same tensor")));
  FolderBuilder other = TinyFolder("other_type");
  other.Tensor("model.layers.0.self_attn.q_proj.bias", "F8_E4M3", {4}, "abcd");
  other.WriteTensors();
  EXPECT_THAT(FolderRefusal(other), HasSubstr("tensor 'model.layers.0.self_attn.q_proj.bias' is of type 'F8_E4M3'"));
}

TEST(ModelFolder, WhatIsNotLoadedMayBeOfAnyTypeAndShape) {
  FolderBuilder folder = TinyFolder("towers");
  folder.Tensor("vision_tower.x", "I64", {}, std::string(8, 'x'));
  folder.Tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F64", {1}, std::string(8, 'x'));
  AddF32(folder, "model.layers.0.self_attn.rotary_emb.cos_cached", {16, 2});
  folder.WriteTensors();
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 11u);
  EXPECT_THAT((*file)->remarks(), ElementsAre(AllOf(HasSubstr(folder.path()), HasSubstr(": 3 tensors are left out"))));
}

TEST(ModelFolder, AHeadBesideATiedEmbeddingCountsWhereItDiffers) {
  FolderBuilder equal = TinyFolder("equal_head");
  AddF32(equal, "lm_head.weight", {8, 4});
  equal.WriteTensors();
  auto file = OpenFolder(equal.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->FindTensor("output.weight").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT((*file)->remarks(), SizeIs(0));

  FolderBuilder own = TinyFolder("own_head");
  own.Tensor("lm_head.weight", "F32", {8, 4}, std::string(127, '\0') + '\1');  // in its last byte
  own.WriteTensors();
  file = OpenFolder(own.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*(*file)->FindTensor("output.weight"))->stored_as, own.path() + "/model.safetensors: lm_head.weight");
  EXPECT_THAT((*file)->remarks(),
              ElementsAre(own.path() + "/config.json: tie_word_embeddings says that the head is the embedding, but " +
                          own.path() + "/model.safetensors: lm_head.weight differs from it: that head is used"));
}

TEST(ModelFolder, BiasesThatTheConfigurationAnnouncesAndThatAreMissingAreSaid) {
  FolderBuilder folder = TinyFolder("announced", R"(,"attention_bias":true)");
  for (const auto& [name, size] : {std::pair("q", 4), {"k", 2}, {"v", 2}}) {
    AddF32(folder, absl::StrCat("model.layers.0.self_attn.", name, "_proj.bias"), {size});
  }
  folder.WriteTensors();
  auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->remarks(),
              ElementsAre(AllOf(StartsWith(folder.path() + "/config.json"),
                                HasSubstr("tensor 'model.layers.0.self_attn.o_proj.bias' is missing"))));
  AddF32(folder, "model.layers.0.self_attn.o_proj.bias", {4});
  folder.WriteTensors();
  file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->remarks(), SizeIs(0));
}

TEST(ModelFolder, OneNumberedFileNeedsNoIndex) {
  const FolderBuilder folder = TinyFolder("one_of_one");
  folder.WriteTensors();
  std::filesystem::rename(folder.path() + "/model.safetensors", folder.path() + "/model-00001-of-00001.safetensors");
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 11u);
  EXPECT_EQ((*file)->parts().back().path, folder.path() + "/model-00001-of-00001.safetensors");
}

// The order is that of transformers' tokenizers; chat_template.json is of its processors.
TEST(ModelFolder, ChatTemplatesComeFromAllTheFilesThatHaveThem) {
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
  std::filesystem::create_directory(folder.path() + "/chat_templates");
  folder.Text("chat_templates/tool_use.jinja", "with tools");
  EXPECT_EQ(chat_template("tokenizer.chat_template.tool_use"), "with tools");
  std::filesystem::remove(folder.path() + "/chat_template.jinja");
  std::filesystem::remove(folder.path() + "/tokenizer_config.json");
  for (const char* text : {"{}", "[]", R"({"chat_template":7})"}) {
    folder.Text("chat_template.json", text);
    EXPECT_THAT(FolderRefusal(folder), HasSubstr("/chat_template.json: key chat_template must be there, and a text"));
  }
}

TEST(ModelFolder, FingerprintsOfTokenizerAndTemplateTellThemApart) {
  const FolderBuilder folder = TinyFolder("words");
  folder.WriteTensors();
  folder.Text("tokenizer.json", "{\"a\":1}");
  folder.Text("chat_template.jinja", "{{ a }}");
  struct Prints {
    uint64_t words, chats, all;
  };
  const auto prints = [&] {
    const auto file = *OpenFolder(folder.path());
    return Prints{file->tokenizer_fingerprint(), file->chat_template_fingerprint(), file->fingerprint()};
  };
  const Prints before = prints();
  folder.Text("tokenizer.json", "{\"a\":2}");
  const Prints words = prints();
  EXPECT_NE(words.words, before.words);
  EXPECT_EQ(words.chats, before.chats);
  EXPECT_NE(words.all, before.all);
  folder.Text("chat_template.jinja", "{{ b }}");
  const Prints chats = prints();
  EXPECT_EQ(chats.words, words.words);
  EXPECT_NE(chats.chats, words.chats);
  EXPECT_NE(chats.all, words.all);
  folder.Text("generation_config.json", R"({"eos_token_id":3})");
  EXPECT_NE(prints().words, chats.words);
}

TEST(ModelFolder, TextsThatAreNoJsonAreNamed) {
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

TEST(ModelFolder, AnIndexStaysInItsFolder) {
  FolderBuilder folder = TinyFolder("leaving");
  TinyFolder("beside").WriteTensors();
  for (const char* name :
       {"../beside/model.safetensors", "/etc/passwd", "..", ".", "", "sub/x.safetensors", "\\u0000model.safetensors"}) {
    folder.Text("model.safetensors.index.json", absl::StrCat(R"({"weight_map":{"model.norm.weight":")", name, "\"}}"));
    EXPECT_THAT(FolderRefusal(folder), AllOf(HasSubstr("model.safetensors.index.json: weight_map has"),
                                             HasSubstr("it must be the name of a file in this folder")))
        << name;
  }
  for (const char* index : {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":null})"}) {
    folder.Text("model.safetensors.index.json", index);
    EXPECT_THAT(FolderRefusal(folder), HasSubstr("index.json: it has no weight_map"));
  }
  folder.Text("model.safetensors.index.json", R"({"weight_map":{"a":7}})");
  EXPECT_THAT(FolderRefusal(folder), HasSubstr("weight_map has no name of a file for 'a'"));
}

TEST(ModelFolder, ShardsThatAreNotThereOrNoFiles) {
  FolderBuilder folder = TinyFolder("shards");
  folder.WriteTensors(2);
  const std::string second = folder.path() + "/model-00002-of-00002.safetensors";
  std::filesystem::remove(second);
  EXPECT_THAT(FolderRefusal(folder),
              AllOf(StartsWith(second), HasSubstr("is missing, which"), HasSubstr("index.json")));
  ASSERT_EQ(mkfifo(second.c_str(), 0600), 0);
  EXPECT_THAT(FolderRefusal(folder), HasSubstr(second + " is not a regular file"));
  std::filesystem::remove(second);
  std::filesystem::create_directory(second);
  EXPECT_THAT(FolderRefusal(folder), HasSubstr(second + " is not a regular file"));
  std::filesystem::remove(second);
  std::filesystem::create_symlink("/nowhere", second);
  EXPECT_THAT(FolderRefusal(folder), HasSubstr(second));
}

TEST(ModelFolder, TensorsAreWhereTheIndexSays) {
  FolderBuilder folder = TinyFolder("indexed");
  folder.WriteTensors(2);
  const std::string first = "model-00001-of-00002.safetensors";
  folder.Text(first, SafetensorsImage("{}", ""));
  EXPECT_THAT(FolderRefusal(folder), AllOf(HasSubstr(first + ": tensor 'model."), HasSubstr("is not here, where")));
  folder.WriteTensors(2);
  folder.Text(first, SafetensorsImage(R"({"more":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  EXPECT_THAT(FolderRefusal(folder),
              HasSubstr(first + ": tensor 'more' is here, but model.safetensors.index.json does not"));
  folder.Text(first, "no safetensors");
  EXPECT_THAT(FolderRefusal(folder), HasSubstr(first + ": the header is said to have"));
}

TEST(OpenModelFile, TakesFilesAndFolders) {
  FolderBuilder folder = TinyFolder("either");
  folder.WriteTensors();
  EXPECT_EQ((*OpenModelFile(folder.path()))->container(), ModelFile::Container::kFolder);
  const std::string gguf = FolderPath("either.gguf");
  ASSERT_TRUE(WriteSyntheticGguf(SyntheticModel{}, gguf).ok());
  EXPECT_EQ((*OpenModelFile(gguf))->container(), ModelFile::Container::kGguf);
  for (const char* name : {"/config.json", "/model.safetensors", "/model.safetensors.index.json"}) {
    EXPECT_THAT(std::string(OpenModelFile(folder.path() + name).status().message()), HasSubstr("give the folder"));
  }
  EXPECT_EQ(OpenModelFile("/nowhere/model").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace runahead
