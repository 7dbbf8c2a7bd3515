#include "worker/format/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/testing/synthetic_gguf.h"
#include "tests/worker/format/tiny_folder.h"
#include "worker/format/mapped_file.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
