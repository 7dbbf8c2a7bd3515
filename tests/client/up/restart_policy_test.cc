#include "client/up/restart_policy.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

const absl::Time kBegin = absl::FromUnixSeconds(1'000'000);

TEST(RestartPolicy, PausesDoubleUpToAMinute) {
  RestartPolicy policy({});
  for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60, 60}) {
    EXPECT_EQ(policy.OnDeath(kBegin, absl::Seconds(59)), kBegin + absl::Seconds(seconds));
  }
  EXPECT_EQ(policy.deaths(), 9);
}

TEST(RestartPolicy, WhoServedForAMinuteBeginsAnew) {
  RestartPolicy policy({});
  for (int i = 0; i < 4; ++i) policy.OnDeath(kBegin, absl::ZeroDuration());
  EXPECT_FALSE(policy.too_many());
  EXPECT_EQ(policy.OnDeath(kBegin, absl::Minutes(1)), kBegin + absl::Seconds(1));
  EXPECT_EQ(policy.deaths(), 1);
}

TEST(RestartPolicy, FiveInARowAreTooMany) {
  RestartPolicy policy({});
  for (int i = 0; i < 4; ++i) policy.OnDeath(kBegin, absl::Seconds(30));
  EXPECT_FALSE(policy.too_many());
  policy.OnDeath(kBegin, absl::Seconds(30));
  EXPECT_TRUE(policy.too_many());
}

// A loop of many days: nothing overflows.
TEST(RestartPolicy, StaysAtAMinuteForGood) {
  RestartPolicy policy({});
  for (int i = 0; i < 100'000; ++i) policy.OnDeath(kBegin, absl::ZeroDuration());
  EXPECT_EQ(policy.OnDeath(kBegin, absl::ZeroDuration()), kBegin + absl::Minutes(1));
}

}  // namespace
}  // namespace runahead
