#include "kernels/cpu/shared_weights.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/mutex.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kLarge = (size_t{5} << 20) + 64;

// Two opens of a file are to its locks what two processes are.
class SharedWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_); }
  void TearDown() override {
    kept_ = nullptr;
    std::filesystem::remove_all(folder_);
  }

  absl::StatusOr<std::shared_ptr<SharedWeights>> Open(const std::string& identity = "ours", int64_t bytes = 1000) {
    return SharedWeights::Open({.path = folder_, .identity = identity, .bytes = bytes});
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) files.push_back(entry.path().string());
    return files;
  }
  // A complete file that nobody has locked, as killed processes leave it.
  std::string Leave(const std::string& identity) {
    const pid_t child = fork();
    if (child == 0) {
      const auto weights = *Open(identity);
      std::memset(weights->Find("a", 100)->memory.data(), 7, 100);
      std::memset(weights->Find("large", kLarge)->memory.data(), 8, kLarge);
      const bool done = weights->Complete("weights").ok();
      if (done) raise(SIGKILL);
      _exit(1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    return Files().empty() ? "" : Files().back();
  }

  std::shared_ptr<SharedWeights> kept_;  // past a thread's end
  const std::string folder_ = ::testing::TempDir() + "/shared_weights_" + std::to_string(getpid());
};

TEST_F(SharedWeightsTest, TheFirstPacksAndTheOthersReadTheSameMemory) {
  const auto packer = *Open();
  ASSERT_TRUE(packer->packs());
  const auto small = packer->Find("small", 100), large = packer->Find("large", kLarge);
  ASSERT_TRUE(small.has_value() && large.has_value());
  EXPECT_FALSE(small->filled || large->filled);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large->memory.data()) % 64, 0u);
  std::memset(small->memory.data(), 1, 100);
  std::memset(large->memory.data(), 2, kLarge);
  ASSERT_TRUE(packer->Complete("weights").ok());

  const auto reader = *Open();
  EXPECT_FALSE(reader->packs());
  const auto again = reader->Find("large", kLarge);
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(again->filled);
  EXPECT_EQ(std::memcmp(again->memory.data(), large->memory.data(), kLarge), 0);
  EXPECT_TRUE(reader->Find("small", 100)->filled);
  EXPECT_EQ(reader->shared_bytes(), kLarge + 100);
  EXPECT_EQ(packer->shared_bytes(), kLarge + 100);
  EXPECT_EQ(reader->refused_bytes(), 0u);
}

TEST_F(SharedWeightsTest, WhatIsNotThereIsForMemoryOfOnesOwn) {
  const auto packer = *Open();
  EXPECT_TRUE(packer->Find("a", 100).has_value());
  EXPECT_FALSE(packer->Find("a", 100).has_value()) << "another may still be filling it";
  EXPECT_FALSE(packer->Find(std::string(200, 'x'), 100).has_value());
  ASSERT_TRUE(packer->Complete("weights").ok());
  EXPECT_FALSE(packer->Find("late", 100).has_value());
  const auto reader = *Open();
  EXPECT_FALSE(reader->Find("b", 100).has_value());
  EXPECT_FALSE(reader->Find("a", 101).has_value());
  EXPECT_EQ(reader->refused_bytes(), 201u);
}

TEST_F(SharedWeightsTest, WhatIsCompleteCannotBeWritten) {
  const auto packer = *Open();
  const BufferRef packed = packer->Find("a", kLarge)->memory;
  std::memset(packed.data(), 1, kLarge);
  ASSERT_TRUE(packer->Complete("weights").ok());
  const BufferRef read = (*Open())->Find("a", kLarge)->memory;
  for (std::byte* const at : {packed.data(), packed.data() + kLarge - 1, read.data()}) {
    const pid_t child = fork();
    if (child == 0) {
      std::signal(SIGSEGV, SIG_DFL);
      *const_cast<volatile std::byte*>(at) = std::byte{9};
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  }
}

TEST_F(SharedWeightsTest, OthersWaitForThePacker) {
  auto packer = *Open();
  const auto block = packer->Find("a", 100);
  int waits = 0, filled = -1;
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  std::thread other([&] {
    const auto reader = *SharedWeights::Open({.path = folder_, .identity = "ours", .on_wait = [&] {
                                                ++waits;
                                                ASSERT_EQ(write(said[1], "w", 1), 1);
                                              }});
    filled = static_cast<int>(reader->Find("a", 100)->memory.data()[99]);
  });
  char word;
  ASSERT_EQ(read(said[0], &word, 1), 1);
  std::memset(block->memory.data(), 5, 100);
  ASSERT_TRUE(packer->Complete("weights").ok());
  other.join();
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(filled, 5);
  close(said[0]);
  close(said[1]);
}

TEST_F(SharedWeightsTest, APackerThatWasKilledLeavesNothing) {
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto weights = *Open();
    std::memset(weights->Find("a", 100)->memory.data(), 7, 100);
    if (write(said[1], "p", 1) == 1) pause();
    _exit(1);
  }
  char word;
  ASSERT_EQ(read(said[0], &word, 1), 1);
  // Two wait for it: one of them packs anew, the other waits for that one.
  int waiting[2];
  ASSERT_EQ(pipe(waiting), 0);
  int packed = 0, read_there = 0;
  Mutex mu;
  const auto follow = [&] {
    bool first = true;
    const auto weights = *SharedWeights::Open({.path = folder_, .identity = "ours", .on_wait = [&] {
                                                 if (std::exchange(first, false)) {
                                                   ASSERT_EQ(write(waiting[1], "w", 1), 1);
                                                 }
                                               }});
    const auto block = weights->Find("a", 100);
    if (!weights->packs()) {
      MutexLock lock(mu);
      read_there += static_cast<int>(block->memory.data()[0]);
      return;
    }
    std::memset(block->memory.data(), 8, 100);
    ASSERT_TRUE(weights->Complete("weights").ok());
    MutexLock lock(mu);
    ++packed;
    kept_ = weights;
  };
  std::thread one(follow), two(follow);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(read(waiting[0], &word, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  one.join();
  two.join();
  EXPECT_EQ(packed, 1);
  EXPECT_EQ(read_there, 8);
  for (const int fd : {said[0], said[1], waiting[0], waiting[1]}) close(fd);
}

TEST_F(SharedWeightsTest, WeightsOfKilledUsersAreStillGood) {
  Leave("ours");
  const auto reader = *Open();
  EXPECT_FALSE(reader->packs());
  EXPECT_EQ(reader->Find("a", 100)->memory.data()[99], std::byte{7});
}

TEST_F(SharedWeightsTest, TheFileGoesWithItsLastUser) {
  auto packer = *Open();
  BufferRef packed = packer->Find("a", 100)->memory;
  ASSERT_TRUE(packer->Complete("weights").ok());
  auto reader = *Open();
  BufferRef read = reader->Find("a", 100)->memory;
  packer.reset();
  packed = {};
  EXPECT_THAT(Files(), SizeIs(1));
  reader.reset();
  EXPECT_THAT(Files(), SizeIs(1)) << "a block is in use";
  read = {};
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(SharedWeightsTest, WhatKilledProcessesLeftGoesWhenAnotherStarts) {
  Leave("ours, before");
  EXPECT_THAT(Files(), SizeIs(1));
  const auto used = *Open("used");
  EXPECT_THAT(Files(), SizeIs(1)) << "the one that was left went";
  const auto weights = *Open();
  EXPECT_THAT(Files(), SizeIs(2)) << "the one in use stays";
}

TEST_F(SharedWeightsTest, AnotherIdentityIsAnotherFile) {
  const auto one = *Open("one");
  const auto other = *Open("other");
  EXPECT_TRUE(one->packs());
  EXPECT_TRUE(other->packs());
  EXPECT_NE(one->path(), other->path());
}

// The blocks lie from 512 KiB on, each from a page's begin.
constexpr size_t kBlockA = 512 << 10, kBlockLarge = kBlockA + 4096;

struct Flip {
  const char* what;
  size_t at;
  const char* said;
};
constexpr Flip kFlips[] = {
    {"magic", 3, "header"},
    {"version", 8, "header"},
    {"hash of the directory", 16, "header"},
    {"identity", 40, "header"},
    {"contents", 24 + 512 + 3, "header"},
    {"hash of the header", 24 + 512 + 64, "header"},
    {"name of a block", 4096, "directory"},
    {"sum of a block", 4096 + 112 + 16, "directory"},
    {"first byte of a block", kBlockA, "a is not as it was packed"},
    {"last byte of a block", kBlockA + 99, "a is not as it was packed"},
    {"a byte inside of a block", kBlockLarge + (4 << 20) + 77, "large is not as it was packed"},
    {"last byte of the file", kBlockLarge + kLarge - 1, "large is not as it was packed"},
};

void FlipByte(const std::string& path, size_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 1));
  ASSERT_TRUE(file.good());
}

TEST_F(SharedWeightsTest, AFlippedByteIsSeenAndPackedAnewWhereNobodyElseUsesTheFile) {
  for (const Flip& flip : kFlips) {
    SCOPED_TRACE(flip.what);
    FlipByte(Leave("ours"), flip.at);
    const auto weights = *Open();
    EXPECT_TRUE(weights->packs());
    EXPECT_THAT(weights->damage(), HasSubstr(flip.said));
  }
  std::filesystem::resize_file(Leave("ours"), kBlockA + 50);
  const auto weights = *Open();
  EXPECT_TRUE(weights->packs());
  EXPECT_THAT(weights->damage(), HasSubstr("ends before a does"));
}

TEST_F(SharedWeightsTest, AFlippedByteIsRefusedByNameWhereOthersUseTheFile) {
  for (const Flip& flip : kFlips) {
    SCOPED_TRACE(flip.what);
    const std::string path = Leave("ours");
    const auto user = *Open();
    ASSERT_FALSE(user->packs());
    EXPECT_THAT(user->damage(), IsEmpty());
    FlipByte(path, flip.at);
    const absl::Status refused = Open().status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(path), HasSubstr(flip.said), HasSubstr("are told")));
    FlipByte(path, flip.at);
    EXPECT_TRUE(Open().ok());
  }
}

// Was: only the log of who found it said so, and the others computed on.
TEST_F(SharedWeightsTest, WhoUsesADamagedBlockHearsOfItFromTheNextThatOpensTheFile) {
  for (const Flip& flip : kFlips) {
    SCOPED_TRACE(flip.what);
    const std::string path = Leave("ours");
    const auto user = *Open();
    FlipByte(path, flip.at);
    EXPECT_TRUE(user->CheckMark().ok()) << "nobody has found it";
    EXPECT_FALSE(Open().ok());
    const absl::Status damaged = user->CheckMark();
    // Damage beside the blocks harms nobody who has them.
    const bool in_block = flip.at >= kBlockA;
    EXPECT_EQ(damaged.code(), in_block ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk);
    if (in_block) {
      EXPECT_THAT(std::string(damaged.message()), AllOf(HasSubstr(path), HasSubstr(flip.said)));
    }
    FlipByte(path, flip.at);
    EXPECT_TRUE(user->CheckMark().ok());
    EXPECT_TRUE(Open().ok());
  }
}

TEST_F(SharedWeightsTest, WhoPackedHearsOfItToo) {
  const auto packer = *Open();
  std::memset(packer->Find("a", 100)->memory.data(), 7, 100);
  ASSERT_TRUE(packer->Complete("weights").ok());
  FlipByte(packer->path(), kBlockA);
  EXPECT_FALSE(Open().ok());
  EXPECT_EQ(packer->CheckMark().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SharedWeightsTest, AFileThatOthersMayOpenIsRefused) {
  const std::string path = Leave("ours");
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  const auto weights = Open();
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr(path));
}

TEST_F(SharedWeightsTest, ALinkInTheFoldersPlaceIsNotFollowed) {
  const std::string path = Leave("ours");
  std::filesystem::rename(path, folder_ + "/elsewhere");
  std::filesystem::create_symlink(folder_ + "/elsewhere", path);
  EXPECT_FALSE(Open().ok());
}

TEST_F(SharedWeightsTest, FilesAreForOneUser) {
  const auto weights = *Open();
  struct stat info;
  ASSERT_EQ(stat(weights->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(SharedWeightsTest, NoRoomIsSaidWithTheNumbers) {
  const auto weights = Open("ours", int64_t{1} << 60);
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr(std::to_string(int64_t{1} << 60)));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(SharedWeightsTest, ABlockWithoutRoomStaysOutOfTheFile) {
  const auto packer = *Open();
  EXPECT_FALSE(packer->Find("too large", size_t{1} << 50).has_value());
  EXPECT_TRUE(packer->Find("a", 100).has_value());
  ASSERT_TRUE(packer->Complete("weights").ok());
  EXPECT_EQ(packer->refused_bytes(), size_t{1} << 50);
  const auto reader = *Open();
  EXPECT_TRUE(reader->Find("a", 100).has_value());
  EXPECT_FALSE(reader->Find("too large", size_t{1} << 50).has_value());
}

TEST_F(SharedWeightsTest, WhatIsAbandonedIsForOthersToPack) {
  const auto first = *Open();
  first->Find("a", 100);
  first->Abandon();
  EXPECT_FALSE(first->Find("b", 100).has_value());
  EXPECT_TRUE((*Open())->packs());
}

// As `runahead up` gives it to its workers.
TEST_F(SharedWeightsTest, AFileWithoutANameIsSharedByItsDescriptor) {
  const int fd = memfd_create("weights", MFD_CLOEXEC);
  ASSERT_EQ(fchmod(fd, 0600), 0);
  const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
  const auto open = [&](const std::string& identity) {
    return SharedWeights::Open({.path = path, .identity = identity, .bytes = 1000});
  };
  {
    const auto packer = *open("ours");
    ASSERT_TRUE(packer->packs());
    std::memset(packer->Find("a", kLarge)->memory.data(), 3, kLarge);
    ASSERT_TRUE(packer->Complete("weights").ok());
  }
  const auto reader = *open("ours");
  EXPECT_FALSE(reader->packs()) << "it lives as long as the descriptor";
  EXPECT_EQ(reader->Find("a", kLarge)->memory.data()[kLarge - 1], std::byte{3});
  EXPECT_EQ(open("others").status().code(), absl::StatusCode::kFailedPrecondition);
  close(fd);
  EXPECT_EQ(reader->Find("a", kLarge)->memory.data()[0], std::byte{3});
}

TEST_F(SharedWeightsTest, APlaceThatIsNotThereIsNamed) {
  const auto weights = SharedWeights::Open({.path = folder_ + "/none", .identity = "ours"});
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr(folder_ + "/none"));
}

}  // namespace
}  // namespace runahead
