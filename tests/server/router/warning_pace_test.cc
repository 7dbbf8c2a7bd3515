#include "server/router/warning_pace.h"

#include <vector>

#include "gtest/gtest.h"

namespace runahead {
namespace {

absl::Time At(int seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

TEST(WarningPace, WarnsAsTroubleBeginsAndOnceAMinuteWhileItLasts) {
  WarningPace pace;
  std::vector<int> warned;
  for (int second = 7; second <= 200; ++second) {
    if (pace.Due(WorkerState::kLost, At(second))) warned.push_back(second);
  }
  EXPECT_EQ(warned, std::vector<int>({7, 67, 127, 187}));
}

TEST(WarningPace, WarnsAtOnceOfTroubleOfAnotherKind) {
  WarningPace pace;
  EXPECT_TRUE(pace.Due(WorkerState::kConnecting, At(0)));
  EXPECT_TRUE(pace.Due(WorkerState::kRefused, At(1)));
  EXPECT_FALSE(pace.Due(WorkerState::kConnecting, At(2)));
  EXPECT_FALSE(pace.Due(WorkerState::kRefused, At(60)));
  EXPECT_TRUE(pace.Due(WorkerState::kConnecting, At(60)));
}

TEST(WarningPace, WarnsAtOnceWhenItWasOverMeanwhile) {
  WarningPace pace;
  EXPECT_TRUE(pace.Due(WorkerState::kLost, At(0)));
  pace.Over();
  EXPECT_TRUE(pace.Due(WorkerState::kLost, At(1)));
  EXPECT_FALSE(pace.Due(WorkerState::kLost, At(2)));
}

}  // namespace
}  // namespace runahead
