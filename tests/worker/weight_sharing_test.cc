#include "worker/weight_sharing.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/version.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class WeightSharingTest : public ::testing::Test {
 protected:
  WeightSharingTest() {
    std::filesystem::create_directory(folder_);
    options_.role = "decode";
    options_.shared_weights = folder_;
  }
  ~WeightSharingTest() override { std::filesystem::remove_all(folder_); }

  // Null where nothing is shared; then log_ says why.
  std::shared_ptr<SharedWeights> Share(std::string_view numerics = "int8") {
    ::testing::internal::CaptureStderr();
    auto shared = ShareWeights(options_, model_, numerics);
    log_ = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(shared.ok()) << shared.status();
    return shared.ok() ? *shared : nullptr;
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "/weight_sharing_", getpid());
  WorkerOptions options_;
  ModelFacts model_{.mostly_quantised = true, .tensor_bytes = 1000, .identity = "a model"};
  std::string log_;
};

TEST_F(WeightSharingTest, TheFirstWorkerPacksAndTheNextFindsIt) {
  const auto first = Share();
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(first->packs());
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(CompleteSharing(*first, "weights").ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(first->path() + ", packed here"));
  options_.role = "prefill";
  const auto second = Share();
  ASSERT_NE(second, nullptr);
  EXPECT_FALSE(second->packs());
  EXPECT_EQ(second->path(), first->path());
  model_.identity = "another";
  EXPECT_NE(Share()->path(), first->path());
}

// Its file was changed since, and the file system's numbers do not say so.
TEST_F(WeightSharingTest, WhatWasPackedFromOtherContentsIsNotTaken) {
  const auto packed = Share();
  ASSERT_NE(packed, nullptr);
  ASSERT_TRUE(CompleteSharing(*packed, "weights").ok());
  const auto found = Share();
  ASSERT_NE(found, nullptr);
  ASSERT_FALSE(found->packs());
  const absl::Status status = CompleteSharing(*found, "others");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), found->path() + " was packed from a model with other contents");
  EXPECT_TRUE(CompleteSharing(*found, "weights").ok());
}

// As files of killed workers are found: nobody has them locked.
TEST_F(WeightSharingTest, AFileThatWasDamagedIsPackedAnewWithAWordInTheLog) {
  const std::string file = absl::StrCat(folder_, "/file");
  {
    const int fd = open(file.c_str(), O_CREAT | O_RDWR, 0600);
    ASSERT_GE(fd, 0);
    close(fd);
  }
  options_.shared_weights = file;
  {
    const auto packed = Share();
    ASSERT_NE(packed, nullptr);
    std::memset(packed->Find("blk.0.attn_q.weight", 100)->memory.data(), 1, 100);
    ASSERT_TRUE(CompleteSharing(*packed, "weights").ok());
  }
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp((512 << 10) + 7);
    bytes.put(9);
  }
  const auto again = Share();
  ASSERT_NE(again, nullptr);
  EXPECT_TRUE(again->packs());
  EXPECT_THAT(log_, AllOf(HasSubstr(file), HasSubstr("was damaged"), HasSubstr("blk.0.attn_q.weight is not as"),
                          HasSubstr("anew")));
}

TEST_F(WeightSharingTest, ADamagedFileThatOthersUseIsNamedAndTheWeightsAreTheWorkersOwn) {
  const auto packed = Share();
  ASSERT_NE(packed, nullptr);
  std::memset(packed->Find("blk.0.attn_q.weight", 100)->memory.data(), 1, 100);
  ASSERT_TRUE(CompleteSharing(*packed, "weights").ok());
  {
    std::fstream bytes(packed->path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp((512 << 10) + 7);
    bytes.put(9);
  }
  EXPECT_EQ(Share(), nullptr);
  EXPECT_THAT(log_, AllOf(HasSubstr("this worker's own"), HasSubstr(packed->path()),
                          HasSubstr("blk.0.attn_q.weight is not as"), HasSubstr("those who use it are told")));
}

// What is packed is of one layout, which another numerics or another build may not have.
TEST_F(WeightSharingTest, WeightsArePackedForOneModelOneNumericsAndOneBuild) {
  ASSERT_FALSE(BuildId().empty());
  const auto packed = Share();
  ASSERT_NE(packed, nullptr);
  ASSERT_TRUE(CompleteSharing(*packed, "weights").ok());
  const auto of = [&](const std::string& identity) {
    return *SharedWeights::Open({.path = folder_, .identity = identity, .bytes = 1000});
  };
  EXPECT_FALSE(of(absl::StrCat("a model int8 ", BuildId()))->packs());
  for (const std::string& other :
       {absl::StrCat("a model int8 ", BuildId(), "2"), std::string("a model int8"), absl::StrCat("a model ", BuildId()),
        absl::StrCat("a model f32 ", BuildId()), std::string("a model"), absl::StrCat("another int8 ", BuildId())}) {
    EXPECT_TRUE(of(other)->packs()) << other;
  }
}

TEST_F(WeightSharingTest, NothingIsSharedUnlessItIsAskedForOrCannotBe) {
  EXPECT_EQ(Share("bf16"), nullptr);
  EXPECT_THAT(log_, HasSubstr("this worker's own"));
  options_.decode_schedule = "throughput";
  EXPECT_EQ(Share(), nullptr);
  options_.decode_schedule = "auto";
  model_.identity = "";
  EXPECT_EQ(Share(), nullptr);
  model_.identity = "a model";
  options_.shared_weights = "";
  EXPECT_EQ(Share(), nullptr);
}

TEST_F(WeightSharingTest, AFolderThatCannotBeUsedIsNamedAndTheWeightsAreTheWorkersOwn) {
  options_.shared_weights = folder_ + "/none";
  EXPECT_EQ(Share(), nullptr);
  EXPECT_THAT(log_, AllOf(HasSubstr("shared_weights"), HasSubstr(folder_ + "/none")));
}

TEST_F(WeightSharingTest, WeightsThatNoMemoryHoldsAreRefusedWithTheNumbers) {
  model_.tensor_bytes = int64_t{1} << 55;
  for (const std::string& place : {folder_, folder_ + "/none"}) {
    options_.shared_weights = place;
    const absl::Status status = ShareWeights(options_, model_, "int8").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(absl::StrCat(model_.tensor_bytes)), HasSubstr(place)));
  }
}

}  // namespace
}  // namespace runahead
