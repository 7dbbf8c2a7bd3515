#include "server/router/clock_offset.h"

#include <algorithm>
#include <cstdlib>
#include <random>

#include "gtest/gtest.h"

namespace runahead {
namespace {

using Estimate = ClockOffset::Estimate;

constexpr int64_t kMicro = 1000, kMilli = 1'000'000, kSecond = 1'000'000'000;
constexpr int64_t kPeriod = kSecond / 2;  // of pings

// Another clock, ahead by `offset` at our 0, and faster by `drift` of the time.
struct OtherClock {
  int64_t offset = 5 * kSecond;
  double drift = 0;
  int64_t At(int64_t ours) const { return ours + offset + static_cast<int64_t>(drift * static_cast<double>(ours)); }
  int64_t Ahead(int64_t ours) const { return At(ours) - ours; }
};

void Ping(ClockOffset& estimated, const OtherClock& clock, int64_t sent, int64_t there, int64_t back) {
  estimated.Add(sent, sent + there + back, clock.At(sent + there));
}

void ExpectTrue(const ClockOffset& estimated, const OtherClock& clock, int64_t now) {
  const std::optional<Estimate> estimate = estimated.At(now);
  ASSERT_TRUE(estimate.has_value());
  EXPECT_LE(std::abs(estimate->offset - clock.Ahead(now)), estimate->error) << "at " << now;
}

TEST(ClockOffset, NothingIsKnownBeforeTheFirstPing) {
  EXPECT_FALSE(ClockOffset().At(kSecond).has_value());
}

TEST(ClockOffset, EqualWaysGiveTheOffsetExactly) {
  ClockOffset estimated;
  const OtherClock clock{-7 * kSecond};
  Ping(estimated, clock, kSecond, 40 * kMicro, 40 * kMicro);
  const Estimate estimate = *estimated.At(kSecond + 80 * kMicro);
  EXPECT_EQ(estimate.offset, clock.offset);
  EXPECT_EQ(estimate.error, 40 * kMicro);
}

TEST(ClockOffset, HoweverUnlikeTheWaysAreTheErrorBoundsIt) {
  for (const auto& [there, back] : {std::pair<int64_t, int64_t>(0, kMilli), std::pair<int64_t, int64_t>(kMilli, 0),
                                    std::pair<int64_t, int64_t>(1, 2)}) {
    ClockOffset estimated;
    const OtherClock clock;
    Ping(estimated, clock, kSecond, there, back);
    ExpectTrue(estimated, clock, kSecond + there + back);
    EXPECT_LE(estimated.At(kSecond + there + back)->error, (there + back + 1) / 2 + 1);
  }
}

TEST(ClockOffset, TheShortestRoundTripWins) {
  ClockOffset estimated;
  const OtherClock clock;
  Ping(estimated, clock, 0, 10 * kMicro, 30 * kMicro);
  for (int i = 1; i <= 5; ++i) Ping(estimated, clock, i * kMilli, 5 * kMilli, 0);
  const Estimate estimate = *estimated.At(6 * kMilli);
  EXPECT_EQ(estimate.offset, clock.offset - 10 * kMicro);
  EXPECT_NEAR(static_cast<double>(estimate.error), 20 * kMicro, 1 * kMicro);
}

TEST(ClockOffset, WhatWasLongAgoIsLessCertain) {
  ClockOffset estimated;
  const OtherClock clock;
  Ping(estimated, clock, 0, 10 * kMicro, 10 * kMicro);
  EXPECT_NEAR(static_cast<double>(estimated.At(10 * kSecond)->error), kMilli, 20 * kMicro);
  Ping(estimated, clock, 10 * kSecond, 300 * kMicro, 100 * kMicro);
  EXPECT_EQ(estimated.At(10 * kSecond + 400 * kMicro)->error, 200 * kMicro) << "a later one bounds it better by now";
}

TEST(ClockOffset, OldPingsAreForgotten) {
  ClockOffset estimated;
  const OtherClock clock;
  Ping(estimated, clock, 0, 0, 0);
  for (size_t i = 1; i <= ClockOffset::kSamples; ++i) {
    Ping(estimated, clock, static_cast<int64_t>(i), 2 * kMilli, 2 * kMilli);
  }
  EXPECT_GE(estimated.At(4 * kMilli)->error, 2 * kMilli);
}

// An hour of pings whose ways take what they like, with a clock that goes as wrong as is borne.
TEST(ClockOffset, BoundsADriftingClockThroughNoise) {
  for (const double drift : {-0.99 * ClockOffset::kDrift, 0.0, 0.99 * ClockOffset::kDrift}) {
    SCOPED_TRACE(drift);
    std::mt19937 random(7);
    std::exponential_distribution<double> late(1.0 / (300 * kMicro));
    ClockOffset estimated;
    const OtherClock clock{123 * kSecond, drift};
    double worst = 0;
    for (int64_t at = 0; at < 3600 * kSecond; at += kPeriod) {
      const auto there = 30 * kMicro + static_cast<int64_t>(late(random));
      const auto back = 30 * kMicro + static_cast<int64_t>(late(random));
      Ping(estimated, clock, at, there, back);
      for (const int64_t after : {there + back, kPeriod}) {
        ExpectTrue(estimated, clock, at + after);
        worst = std::max(worst, static_cast<double>(estimated.At(at + after)->error));
      }
    }
    EXPECT_LT(worst, kMilli) << "and not by saying that nothing is certain";
  }
}

TEST(ClockOffset, AClockThatWasSetIsBelievedAtOnce) {
  ClockOffset estimated;
  const OtherClock before{5 * kSecond}, after{-900 * kSecond};
  for (int i = 0; i < 8; ++i) Ping(estimated, before, i * kPeriod, 20 * kMicro, 20 * kMicro);
  Ping(estimated, after, 8 * kPeriod, kMilli, kMilli);  // though its way is long
  ExpectTrue(estimated, after, 8 * kPeriod + 2 * kMilli);
  EXPECT_LT(estimated.At(8 * kPeriod + 2 * kMilli)->error, 2 * kMilli);
}

TEST(PeerClock, GoesByThePingThatIsAnswered) {
  PeerClock clock;
  const auto at = [](int64_t ns) { return absl::FromUnixNanos(ns); };
  clock.Asked(1, at(1000));
  clock.Asked(2, at(5000));
  clock.Answered(7, 1, at(5500));  // never asked
  EXPECT_FALSE(clock.At(at(6000)).has_value());
  clock.Answered(2, 1'005'100, at(5200));
  clock.Answered(2, 77, at(5300));  // once is enough
  const auto estimate = clock.At(at(5200));
  ASSERT_TRUE(estimate.has_value());
  EXPECT_EQ(estimate->offset, 1'000'000);
  EXPECT_EQ(estimate->error, 100);
}

TEST(PeerClock, WhoDoesNotSayWhatItsClockShowsIsNotKnown) {
  PeerClock clock;
  clock.Asked(1, absl::FromUnixNanos(1000));
  clock.Answered(1, 0, absl::FromUnixNanos(2000));
  EXPECT_FALSE(clock.At(absl::FromUnixNanos(2000)).has_value());
}

}  // namespace
}  // namespace runahead
