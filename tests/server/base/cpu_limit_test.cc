#include "server/base/cpu_limit.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace runahead {
namespace {

// A tree as the kernel shows it.
class CpuLimitTest : public ::testing::Test {
 protected:
  CpuLimitTest() { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  std::optional<double> Limit() const { return CgroupCpuLimit(root_); }

  const std::string root_ = ::testing::TempDir() + "cpu_limit";
};

TEST_F(CpuLimitTest, NothingIsNoLimit) {
  EXPECT_EQ(Limit(), std::nullopt);
  Write("/proc/self/cgroup", "0::/user.slice\n");
  EXPECT_EQ(Limit(), std::nullopt);
  Write("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
  EXPECT_EQ(Limit(), std::nullopt);
}

TEST_F(CpuLimitTest, Version2InAContainerOfItsOwnNamespace) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(Limit(), 1.5);
}

TEST_F(CpuLimitTest, TheLeastOfTheGroupAndThoseAboveItHolds) {
  Write("/proc/self/cgroup", "0::/kubepods/pod1/worker\n");
  Write("/sys/fs/cgroup/kubepods/pod1/worker/cpu.max", "800000 100000\n");
  Write("/sys/fs/cgroup/kubepods/pod1/cpu.max", "300000 100000\n");
  Write("/sys/fs/cgroup/kubepods/cpu.max", "max 100000\n");
  EXPECT_EQ(Limit(), 3);
}

TEST_F(CpuLimitTest, APathOutsideOfWhatIsSeenLeavesTheTop) {
  Write("/proc/self/cgroup", "0::/../../elsewhere\n");
  Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  Write("/sys/fs/elsewhere/cpu.max", "100000 100000\n");
  EXPECT_EQ(Limit(), 2);
}

TEST_F(CpuLimitTest, Version1) {
  Write("/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Limit(), std::nullopt);
  // The path is the host's; in the container the group itself is the top.
  Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(Limit(), 2.5);
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "50000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Limit(), 0.5);
}

TEST_F(CpuLimitTest, WhatIsNoLimitIsNone) {
  Write("/proc/self/cgroup", "nonsense\n0::/\n");
  for (const char* text : {"", "max", "0 100000", "-1 100000", "100000 0", "many 100000", "1 2 3"}) {
    Write("/sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(Limit(), std::nullopt) << text;
  }
}

TEST(UsableCores, AreThoseThatTheAffinityMaskAllows) {
  std::thread([] {
    cpu_set_t one;
    ASSERT_EQ(sched_getaffinity(0, sizeof(one), &one), 0);
    int first = 0;
    while (!CPU_ISSET(first, &one)) ++first;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(UsableCores(), 1);
  }).join();
}

}  // namespace
}  // namespace runahead
