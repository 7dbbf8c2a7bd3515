#include "server/router/rate_bucket.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr absl::Duration kNothing = absl::ZeroDuration();

class RateBucketTest : public ::testing::Test {
 protected:
  absl::Time now_ = absl::UnixEpoch();
  RateBucket bucket_;
};

TEST_F(RateBucketTest, WithoutARateThereIsNoLimit) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(bucket_.Take(int64_t{1} << 40, now_), kNothing);
  EXPECT_TRUE(bucket_.Holds(int64_t{1} << 50));
}

TEST_F(RateBucketTest, HoldsAMinutesWorthAndFillsEvenly) {
  bucket_.SetRate(60, now_);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(bucket_.Take(1, now_), kNothing) << i;
  EXPECT_EQ(bucket_.Take(1, now_), absl::Seconds(1));
  EXPECT_EQ(bucket_.Take(30, now_), absl::Seconds(30)) << "what is refused takes nothing";
  now_ += absl::Hours(1);
  EXPECT_EQ(bucket_.Take(60, now_), kNothing);
  EXPECT_EQ(bucket_.Take(1, now_), absl::Seconds(1)) << "it does not fill beyond a minute's worth";
}

TEST_F(RateBucketTest, TheTimeItNamesIsTrue) {
  for (const int64_t rate : {7, 60, 999, 1'000'000}) {
    bucket_ = RateBucket();
    bucket_.SetRate(rate, now_);
    for (int i = 0; i < 200; ++i) {
      const int64_t amount = 1 + (i * 7919) % rate;
      const absl::Duration wait = bucket_.Take(amount, now_);
      if (wait == kNothing) continue;
      EXPECT_GT(bucket_.Take(amount, now_ + wait - absl::Milliseconds(2)), kNothing) << rate << ": sooner than said";
      now_ += wait;
      EXPECT_EQ(bucket_.Take(amount, now_), kNothing) << rate << ": later than said";
    }
  }
}

TEST_F(RateBucketTest, WhatIsGivenBackIsThereAgain) {
  bucket_.SetRate(100, now_);
  EXPECT_EQ(bucket_.Take(100, now_), kNothing);
  bucket_.GiveBack(70, 100, now_, now_);
  EXPECT_EQ(bucket_.Take(70, now_), kNothing);
  EXPECT_GT(bucket_.Take(1, now_), kNothing);
  bucket_.GiveBack(1000, 1000, now_, now_);
  EXPECT_EQ(bucket_.Take(100, now_), kNothing) << "no more than it holds";
  EXPECT_GT(bucket_.Take(1, now_), kNothing);
}

TEST_F(RateBucketTest, WhatHasFilledSinceIsNotGivenBackAgain) {
  bucket_.SetRate(100, now_);
  EXPECT_EQ(bucket_.Take(100, now_), kNothing);
  const absl::Time first = now_;
  now_ += absl::Seconds(30);
  EXPECT_EQ(bucket_.Take(50, now_), kNothing) << "half has filled";
  const absl::Time second = now_;
  bucket_.GiveBack(90, 100, first, now_);
  EXPECT_EQ(bucket_.Take(50, now_), kNothing) << "the other half of the 100";
  EXPECT_GT(bucket_.Take(1, now_), kNothing) << "the 50 of the second one are its own";
  now_ += absl::Minutes(1);
  EXPECT_EQ(bucket_.Take(100, now_), kNothing);
  bucket_.GiveBack(50, 50, second, now_);
  EXPECT_GT(bucket_.Take(1, now_), kNothing) << "all of it has filled";
}

TEST_F(RateBucketTest, ANewRateKeepsWhatWasTakenUpToAMinutesWorth) {
  bucket_.SetRate(100, now_);
  EXPECT_EQ(bucket_.Take(90, now_), kNothing);
  bucket_.SetRate(50, now_);
  EXPECT_FALSE(bucket_.Holds(51));
  EXPECT_EQ(bucket_.Take(10, now_), absl::Seconds(12)) << "10 of 50 a minute, all of which are taken";
  bucket_.SetRate(200, now_);
  EXPECT_EQ(bucket_.Take(150, now_), kNothing);
  EXPECT_GT(bucket_.Take(1, now_), kNothing);
}

}  // namespace
}  // namespace runahead
