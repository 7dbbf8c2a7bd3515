#include "server/base/self_probe.h"

#include <atomic>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

const absl::Status kClosed = absl::UnavailableError("connecting: Connection refused");

TEST(ProbeVerdict, IsGivenAfterItsPatience) {
  ProbeVerdict verdict(absl::Seconds(30));
  verdict.Unanswered(absl::Seconds(29), kClosed);
  EXPECT_TRUE(verdict.status().ok());
  verdict.Unanswered(absl::Seconds(1), kClosed);
  EXPECT_EQ(verdict.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(verdict.status().message(),
            "this process's own port has not answered it for 30s: connecting: Connection refused");
  verdict.Unanswered(absl::Seconds(59), kClosed);
  EXPECT_FALSE(verdict.hopeless());
  verdict.Unanswered(absl::Seconds(1), kClosed);
  EXPECT_TRUE(verdict.hopeless());
}

TEST(ProbeVerdict, OneAnswerIsEnough) {
  ProbeVerdict verdict(absl::Seconds(30));
  verdict.Unanswered(absl::Seconds(80), kClosed);
  verdict.Answered();
  EXPECT_TRUE(verdict.status().ok());
  verdict.Unanswered(absl::Seconds(20), kClosed);
  EXPECT_TRUE(verdict.status().ok() && !verdict.hopeless());
}

// Questions that take as long as the test says.
class SelfProbeTest : public ::testing::Test {
 protected:
  SelfProbeOptions Options() {
    const auto ask = [this](absl::Duration) {
      MutexLock lock(mu_);
      clock_.Advance(time_);
      return answer_;
    };
    return {ask, absl::Seconds(30), [this](const absl::Status&) { ++hopeless_; }};
  }
  void NextTakes(absl::Duration time, const absl::Status& answer) {
    MutexLock lock(mu_);
    time_ = time;
    answer_ = answer;
  }
  // The pause between two questions is over, and the next one is answered.
  void GoOn() {
    clock_.Advance(absl::Seconds(5));
    clock_.AwaitWaiters(1);
  }

  testing::FakeClock clock_;
  std::atomic<int> hopeless_ = 0;
  Mutex mu_;
  absl::Duration time_ RUNAHEAD_GUARDED_BY(mu_);
  absl::Status answer_ RUNAHEAD_GUARDED_BY(mu_);
};

TEST_F(SelfProbeTest, APauseOfTheProcessIsNoSilence) {
  NextTakes(absl::Minutes(10), kClosed);  // as when the process is stopped meanwhile
  const SelfProbe probe(Options(), clock_);
  clock_.AwaitWaiters(1);
  EXPECT_TRUE(probe.status().ok());
  NextTakes(absl::ZeroDuration(), kClosed);
  for (int i = 0; i < 4; ++i) GoOn();  // 10 s count so far, and 5 s each
  EXPECT_THAT(std::string(probe.status().message()), HasSubstr("for 30s: connecting"));
  for (int i = 0; i < 11; ++i) GoOn();
  EXPECT_EQ(hopeless_, 0);
  for (int i = 0; i < 3; ++i) GoOn();
  EXPECT_EQ(hopeless_, 1) << "said once, after 90 s";
  NextTakes(absl::ZeroDuration(), absl::OkStatus());
  GoOn();
  EXPECT_TRUE(probe.status().ok());
}

TEST_F(SelfProbeTest, WhatCouldNotBeAskedSaysNothing) {
  NextTakes(absl::ZeroDuration(), absl::ResourceExhaustedError("no port is free"));
  const SelfProbe probe(Options(), clock_);
  clock_.AwaitWaiters(1);
  for (int i = 0; i < 40; ++i) GoOn();
  EXPECT_TRUE(probe.status().ok());
  EXPECT_EQ(hopeless_, 0);
}

}  // namespace
}  // namespace runahead
