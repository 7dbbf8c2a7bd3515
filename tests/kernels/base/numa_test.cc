#include "kernels/base/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGpu[] = "0000:3b:00.0";

// A tree as at /sys.
class NumaTest : public ::testing::Test {
 protected:
  NumaTest() : sysfs_(absl::StrCat(::testing::TempDir(), "/numa_test.", getpid())) {}
  ~NumaTest() override { std::filesystem::remove_all(sysfs_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = absl::StrCat(sysfs_, "/", path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void WriteTwoNodes(const std::string& of_gpu) {
    Write("devices/system/node/online", "0-1");
    Write("devices/system/node/node0/cpulist", "0-3,8-9");
    Write("devices/system/node/node1/cpulist", "4-7,10");
    Write(absl::StrCat("bus/pci/devices/", kGpu, "/numa_node"), of_gpu);
  }

  const std::string sysfs_;
};

TEST_F(NumaTest, FindsTheNodeOfADeviceAndItsCpus) {
  WriteTwoNodes("1");
  const auto node = NumaNodeOfPciDevice(kGpu, sysfs_);
  ASSERT_TRUE(node.has_value());
  EXPECT_EQ(node->number, 1);
  EXPECT_THAT(node->cpus, ElementsAre(4, 5, 6, 7, 10));
  EXPECT_FALSE(NumaNodeOfPciDevice("0000:3c:00.0", sysfs_).has_value()) << "a device that is not there";
}

TEST_F(NumaTest, ThereIsNoneWhereTheMachineDoesNotSay) {
  EXPECT_FALSE(NumaNodeOfPciDevice(kGpu, sysfs_).has_value()) << "no tree";
  WriteTwoNodes("-1");
  EXPECT_FALSE(NumaNodeOfPciDevice(kGpu, sysfs_).has_value()) << "a virtual machine";
  WriteTwoNodes("0");
  Write("devices/system/node/online", "0");
  EXPECT_FALSE(NumaNodeOfPciDevice(kGpu, sysfs_).has_value()) << "one node";
  WriteTwoNodes("0");
  Write("devices/system/node/node0/cpulist", "");
  EXPECT_FALSE(NumaNodeOfPciDevice(kGpu, sysfs_).has_value()) << "a node of memory";
  Write("devices/system/node/node0/cpulist", "0-many");
  EXPECT_FALSE(NumaNodeOfPciDevice(kGpu, sysfs_).has_value()) << "what is no list";
}

// In threads of their own: the test's goes on as it was.
TEST(StayOnNumaNode, ThreadsStayOnTheNodesCpus) {
  std::thread([] {
    cpu_set_t allowed, now;
    ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &allowed)) --last;
    const absl::Status status = StayOnNumaNode({0, {last, CPU_SETSIZE - 1}});
    if (!status.ok()) GTEST_SKIP() << "this machine has no memory policies: " << status;
    std::thread([&] { ASSERT_EQ(sched_getaffinity(0, sizeof(now), &now), 0); }).join();
    EXPECT_EQ(CPU_COUNT(&now), 1);
    EXPECT_TRUE(CPU_ISSET(last, &now));
  }).join();
}

TEST(StayOnNumaNode, RefusesANodeOfWhichNoCpuIsAllowed) {
  std::thread([] {
    cpu_set_t before, after;
    ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
    const absl::Status status = StayOnNumaNode({1, {CPU_SETSIZE - 1}});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("NUMA node 1"));
    ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }).join();
}

}  // namespace
}  // namespace runahead
