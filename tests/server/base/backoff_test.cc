#include "server/base/backoff.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

TEST(Backoff, PausesDoubleUpToTheLongest) {
  Backoff backoff(absl::Milliseconds(100), absl::Milliseconds(500));
  EXPECT_LE(backoff.due(), kStart) << "nothing has failed";
  absl::Time now = kStart;
  for (const int milliseconds : {100, 200, 400, 500, 500}) {
    backoff.Failed(now);
    EXPECT_EQ(backoff.due() - now, absl::Milliseconds(milliseconds));
    now = backoff.due() + absl::Seconds(7);  // whenever it is tried
  }
}

TEST(Backoff, WhatWorkedBeginsWithTheFirstPauseAgain) {
  Backoff backoff(absl::Milliseconds(50), absl::Seconds(1));
  for (int i = 0; i < 4; ++i) backoff.Failed(kStart);
  EXPECT_EQ(backoff.due() - kStart, absl::Milliseconds(400));
  backoff.Worked();
  backoff.Failed(kStart);
  EXPECT_EQ(backoff.due() - kStart, absl::Milliseconds(50));
}

}  // namespace
}  // namespace runahead
