#include "server/base/followed_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

class FollowedFileTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(path_); }
  void Write(const std::string& text) { ASSERT_TRUE(WriteTextFile(path_, text).ok()); }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/followed_file_test_", getpid());
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(FollowedFileTest, TellsOfAChangeOnceAndLooksOnceAPeriod) {
  Write("a");
  FollowedFile file(path_, 10);
  EXPECT_EQ(*file.text(), "a");
  EXPECT_FALSE(file.Look(now_));
  Write("b");
  EXPECT_FALSE(file.Look(now_ + kFollowPeriod - absl::Milliseconds(1)));
  EXPECT_EQ(*file.text(), "a");
  EXPECT_TRUE(file.Look(now_ + kFollowPeriod));
  EXPECT_EQ(*file.text(), "b");
  EXPECT_FALSE(file.Look(now_ + 2 * kFollowPeriod));
}

TEST_F(FollowedFileTest, AFileThatIsGoneOrTooLongIsAChangeToo) {
  Write("a");
  FollowedFile file(path_, 10);
  std::filesystem::remove(path_);
  EXPECT_TRUE(file.Look(now_));
  EXPECT_EQ(file.text().status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(file.Look(now_ += kFollowPeriod)) << "said already";
  Write(std::string(11, 'x'));
  EXPECT_TRUE(file.Look(now_ += kFollowPeriod));
  EXPECT_EQ(file.text().status().code(), absl::StatusCode::kInvalidArgument);
  Write("a");
  EXPECT_TRUE(file.Look(now_ += kFollowPeriod));
  EXPECT_EQ(*file.text(), "a");
}

TEST_F(FollowedFileTest, APipeIsReadOnceAndNotWaitedForAgain) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  std::thread writer([&] { EXPECT_EQ(std::system(absl::StrCat("printf a >", path_).c_str()), 0); });
  FollowedFile file(path_, 10);
  writer.join();
  EXPECT_EQ(*file.text(), "a");
  EXPECT_FALSE(file.Look(now_));
  EXPECT_EQ(*file.text(), "a");
}

TEST_F(FollowedFileTest, NothingNeverChanges) {
  FollowedFile file;
  EXPECT_FALSE(file.Look(now_));
}

}  // namespace
}  // namespace runahead
