#include "client/up/restart_policy.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

const absl::Time kBegin = absl::FromUnixSeconds(1'000'000);

TEST(RestartPolicy, PausesBeforeEachStart) {
  RestartPolicy policy({.pause = absl::Seconds(1), .max_deaths = 5, .window = absl::Minutes(1)});
  EXPECT_EQ(policy.OnDeath(kBegin), kBegin + absl::Seconds(1));
}

TEST(RestartPolicy, GivesUpAtTheFifthDeathInAMinute) {
  RestartPolicy policy({});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(policy.OnDeath(kBegin + absl::Seconds(i)).has_value()) << i;
  EXPECT_FALSE(policy.OnDeath(kBegin + absl::Seconds(59)).has_value());
}

TEST(RestartPolicy, ForgetsDeathsAfterAMinute) {
  RestartPolicy policy({});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(policy.OnDeath(kBegin).has_value());
  EXPECT_TRUE(policy.OnDeath(kBegin + absl::Seconds(60)).has_value());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(policy.OnDeath(kBegin + absl::Seconds(61)).has_value());
  EXPECT_FALSE(policy.OnDeath(kBegin + absl::Seconds(62)).has_value());
}

}  // namespace
}  // namespace runahead
