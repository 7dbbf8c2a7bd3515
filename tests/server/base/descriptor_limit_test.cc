#include "server/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

#include "gtest/gtest.h"

namespace runahead {
namespace {

class DescriptorLimitTest : public ::testing::Test {
 protected:
  DescriptorLimitTest() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorLimitTest() override { setrlimit(RLIMIT_NOFILE, &before_); }
  void SetSoft(rlim_t soft) {
    rlimit limits = before_;
    limits.rlim_cur = soft;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limits), 0);
  }

  rlimit before_{};
};

TEST_F(DescriptorLimitTest, RisesToTheHardLimit) {
  SetSoft(64);
  EXPECT_EQ(DescriptorLimit(), 64);
  RaiseDescriptorLimit();
  EXPECT_EQ(static_cast<rlim_t>(DescriptorLimit()), std::min<rlim_t>(before_.rlim_max, 1 << 20));
}

TEST_F(DescriptorLimitTest, AQuarterIsKept) {
  SetSoft(256);
  EXPECT_EQ(KeptDescriptors(), 64);
  EXPECT_FALSE(IsAmongTheLast(191, KeptDescriptors()));
  EXPECT_TRUE(IsAmongTheLast(192, KeptDescriptors()));
  SetSoft(32);
  EXPECT_EQ(KeptDescriptors(), 16);
}

}  // namespace
}  // namespace runahead
