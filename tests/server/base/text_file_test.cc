#include "server/base/text_file.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kMax = 1 << 20;

class TextFileTest : public ::testing::Test {
 protected:
  TextFileTest() : folder_(absl::StrCat(::testing::TempDir(), "/text_file_test_", getpid())) {
    fs::create_directory(folder_);
  }
  ~TextFileTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  size_t Files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  const std::string folder_;
};

TEST_F(TextFileTest, ReadsWhatItWrote) {
  const std::string text = std::string("one\ntwo\0three", 13) + std::string(100'000, 'x');
  ASSERT_TRUE(WriteTextFile(Path("a"), text).ok());
  EXPECT_EQ(ReadTextFile(Path("a"), kMax).value(), text);
  ASSERT_TRUE(WriteTextFile(Path("a"), "").ok());
  EXPECT_EQ(ReadTextFile(Path("a"), kMax).value(), "");
  EXPECT_EQ(Files(), 1u) << "nothing else is left";
}

TEST_F(TextFileTest, WritesIntoTheWorkingFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  EXPECT_TRUE(WriteTextFile("plain", "x").ok());
  fs::current_path(before);
  EXPECT_TRUE(fs::exists(Path("plain")));
}

TEST_F(TextFileTest, RefusesWhatIsTooLarge) {
  ASSERT_TRUE(WriteTextFile(Path("a"), "12345").ok());
  EXPECT_EQ(ReadTextFile(Path("a"), 5).value(), "12345");
  const absl::Status status = ReadTextFile(Path("a"), 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("a") + ": larger than 4 bytes"));
}

TEST_F(TextFileTest, NamesTheFileThatItCannotRead) {
  const absl::Status status = ReadTextFile(Path("gone"), kMax).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot read " + Path("gone")));
  EXPECT_FALSE(ReadTextFile(folder_, kMax).ok());
}

TEST_F(TextFileTest, KeepsLinkAndMode) {
  std::ofstream(Path("a")) << "old";
  fs::permissions(Path("a"), fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  fs::create_symlink("a", Path("link"));
  ASSERT_TRUE(WriteTextFile(Path("link"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(ReadTextFile(Path("a"), kMax).value(), "new");
  EXPECT_EQ(fs::status(Path("a")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
}

TEST_F(TextFileTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(WriteTextFile(Path("pipe"), "x").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(WriteTextFile(folder_, "x").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
  EXPECT_EQ(WriteTextFile(Path("no/such/folder"), "x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Files(), 1u);
}

TEST_F(TextFileTest, LeavesTheOldFileWhereItCannotWrite) {
  ASSERT_TRUE(WriteTextFile(Path("a"), "old").ok());
  // The temporary file's name is taken by a folder.
  fs::create_directory(absl::StrCat(Path("a"), ".tmp-", getpid()));
  EXPECT_FALSE(WriteTextFile(Path("a"), "new").ok());
  EXPECT_EQ(ReadTextFile(Path("a"), kMax).value(), "old");
}

// A reader in another process sees one of the two texts, whole, whenever the writer dies.
TEST_F(TextFileTest, AKilledWriterLeavesTheOldFileOrTheNewOne) {
  const std::string one(200'000, '1'), two(300'000, '2');
  ASSERT_TRUE(WriteTextFile(Path("a"), one).ok());
  for (int kill_after = 0; kill_after < 20; ++kill_after) {
    const pid_t child = fork();
    if (child == 0) {
      while (WriteTextFile(Path("a"), two).ok() && WriteTextFile(Path("a"), one).ok()) {
      }
      _exit(1);
    }
    for (int reads = 0; reads <= kill_after; ++reads) {
      const std::string seen = ReadTextFile(Path("a"), kMax).value();
      ASSERT_TRUE(seen == one || seen == two) << seen.size();
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string left = ReadTextFile(Path("a"), kMax).value();
    ASSERT_TRUE(left == one || left == two) << left.size();
  }
}

}  // namespace
}  // namespace runahead
