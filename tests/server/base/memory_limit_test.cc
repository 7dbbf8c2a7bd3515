#include "server/base/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

// A tree as the kernel shows it: a machine of 8 GiB.
class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          123456 kB\n");
  }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  std::optional<int64_t> Limit() const { return CgroupMemoryLimit(root_); }
  int64_t Usable() const { return UsableMemory(root_); }

  const std::string root_ = ::testing::TempDir() + "memory_limit";
};

TEST_F(MemoryLimitTest, WithoutALimitTheMachineIsAll) {
  EXPECT_EQ(Limit(), std::nullopt);
  EXPECT_EQ(Usable(), 8 * kGib);
  Write("/proc/self/cgroup", "0::/user.slice\n");
  Write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  EXPECT_EQ(Limit(), std::nullopt);
  EXPECT_EQ(Usable(), 8 * kGib);
}

TEST_F(MemoryLimitTest, WhatIsAvailableIsBoundedByTheLimit) {
  EXPECT_EQ(AvailableMemory(root_), std::numeric_limits<int64_t>::max()) << "an old kernel does not say";
  Write("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          123456 kB\nMemAvailable:    2097152 kB\n");
  EXPECT_EQ(AvailableMemory(root_), 2 * kGib);
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(AvailableMemory(root_), kGib);
}

TEST_F(MemoryLimitTest, Version2InAContainerOfItsOwnNamespace) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(Limit(), kGib);
  EXPECT_EQ(Usable(), kGib);
}

TEST_F(MemoryLimitTest, TheLeastOfTheGroupAndThoseAboveItHolds) {
  Write("/proc/self/cgroup", "0::/kubepods/pod1/worker\n");
  Write("/sys/fs/cgroup/kubepods/pod1/worker/memory.max", "4294967296\n");
  Write("/sys/fs/cgroup/kubepods/pod1/memory.max", "3221225472\n");
  Write("/sys/fs/cgroup/kubepods/memory.max", "max\n");
  EXPECT_EQ(Usable(), 3 * kGib);
}

TEST_F(MemoryLimitTest, Version1) {
  Write("/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // how it says that there is none
  EXPECT_EQ(Limit(), std::nullopt);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(Usable(), 2 * kGib);
  Write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(Usable(), kGib);
}

TEST_F(MemoryLimitTest, ALimitAboveTheMachineIsTheMachine) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "17179869184\n");
  EXPECT_EQ(Limit(), 16 * kGib);
  EXPECT_EQ(Usable(), 8 * kGib);
}

TEST_F(MemoryLimitTest, WhatIsNoLimitIsNone) {
  Write("/proc/self/cgroup", "0::/\n");
  for (const char* text : {"", "max", "0", "-1", "many", "1 2"}) {
    Write("/sys/fs/cgroup/memory.max", text);
    EXPECT_EQ(Limit(), std::nullopt) << text;
  }
}

TEST_F(MemoryLimitTest, AMachineThatDoesNotSayHasNoEnd) {
  for (const char* text : {"", "MemTotal:", "MemTotal: much kB"}) {
    Write("/proc/meminfo", text);
    EXPECT_EQ(Usable(), std::numeric_limits<int64_t>::max()) << text;
  }
}

TEST(UsableMemory, ThisMachineHasSome) {
  EXPECT_GT(UsableMemory(), 0);
  EXPECT_LT(UsableMemory(), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace runahead
