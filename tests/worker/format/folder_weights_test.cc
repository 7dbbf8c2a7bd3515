#include "worker/format/folder_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/worker/format/tiny_folder.h"
#include "worker/format/mapped_file.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST(FolderWeights, ShardsHoldWhatOneFileHolds) {
  FolderBuilder folder = TinyFolder("sharded");
  folder.WriteTensors(3);
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 11u);
  ASSERT_THAT((*file)->parts(), SizeIs(4));  // and config.json
  for (const ModelFile::Part& part : (*file)->parts()) EXPECT_EQ(FileNumbers(part.path), part.numbers);
}

TEST(FolderWeights, OneNumberedFileNeedsNoIndex) {
  const FolderBuilder folder = TinyFolder("one_of_one");
  folder.WriteTensors();
  std::filesystem::rename(folder.path() + "/model.safetensors", folder.path() + "/model-00001-of-00001.safetensors");
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 11u);
  EXPECT_EQ((*file)->parts().back().path, folder.path() + "/model-00001-of-00001.safetensors");
}

// Was: without a word.
TEST(FolderWeights, FilesThatAreNotReadAreNamed) {
  const FolderBuilder folder = TinyFolder("two_of_a_kind");
  folder.WriteTensors();
  for (const char* other : {"/consolidated.safetensors", "/model-00001-of-00001.safetensors"}) {
    std::filesystem::copy_file(folder.path() + "/model.safetensors", folder.path() + other,
                               std::filesystem::copy_options::overwrite_existing);
  }
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->remarks(),
              UnorderedElementsAre(StartsWith(folder.path() + "/consolidated.safetensors is not read"),
                                   StartsWith(folder.path() + "/model-00001-of-00001.safetensors is not read")));
}

TEST(FolderWeights, AnIndexStaysInItsFolder) {
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

TEST(FolderWeights, ShardsThatAreNotThereOrNoFiles) {
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

TEST(FolderWeights, PartsWithoutTheirIndexAreNamed) {
  FolderBuilder folder = TinyFolder("no_index");
  folder.WriteTensors(2);
  std::filesystem::remove(folder.path() + "/model.safetensors.index.json");
  EXPECT_THAT(FolderRefusal(folder), HasSubstr("has model-00001-of-00002.safetensors, but not "
                                               "model.safetensors.index.json, which says what lies in which file"));
  std::filesystem::remove(folder.path() + "/model-00001-of-00002.safetensors");
  EXPECT_THAT(FolderRefusal(folder), HasSubstr("has model-00002-of-00002.safetensors, but not "));
  std::filesystem::remove(folder.path() + "/model-00002-of-00002.safetensors");
  EXPECT_THAT(FolderRefusal(folder), HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
}

TEST(FolderWeights, WhatIsInTheFilesCountsWhateverTheIndexSays) {
  FolderBuilder folder = TinyFolder("indexed");
  folder.WriteTensors(2);
  const std::string first = "model-00001-of-00002.safetensors";
  folder.Text(first, SafetensorsImage("{}", ""));
  EXPECT_THAT(FolderRefusal(folder), AllOf(HasSubstr("tensor 'model."), HasSubstr("is missing")));

  folder.WriteTensors(2);
  const std::string index = "model.safetensors.index.json";
  std::string text((*MappedFile::Open(absl::StrCat(folder.path(), "/", index)))->text());
  text = absl::StrReplaceAll(text, {{"\"model.norm.weight\"", "\"lm_head.weight\""}});
  folder.Text(index, text);
  const auto file = OpenFolder(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->FindTensor("output_norm.weight").ok());
  EXPECT_THAT((*file)->remarks(),
              UnorderedElementsAre(HasSubstr("tensor 'model.norm.weight' is here, but " + index + " does not say so"),
                                   HasSubstr("tensor 'lm_head.weight' is not here, where " + index + " says it is")));
  folder.Text(first, "no safetensors");
  EXPECT_THAT(FolderRefusal(folder), HasSubstr(first + ": the header is said to have"));
}

}  // namespace
}  // namespace runahead
