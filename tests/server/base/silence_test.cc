#include "server/base/silence.h"

#include <gtest/gtest.h>

#include "tests/testing/known_hearing.h"

namespace runahead {
namespace {

using testing::KnownHearing;

constexpr absl::Duration kLook = Silence::kLookPeriod;

// Looks every tenth of a second until `until`; what the last one says.
absl::Duration LookUntil(Silence& silence, absl::Time& now, absl::Time until) {
  absl::Duration silent;
  while (now < until) silent = silence.Look(now += kLook);
  return silent;
}

class SilenceTest : public ::testing::Test {
 protected:
  absl::Duration After(absl::Duration time) { return LookUntil(silence_, now_, begin_ + time); }

  const absl::Time begin_ = absl::FromUnixSeconds(1000);
  absl::Time now_ = begin_;
  KnownHearing hearing_;
  Silence silence_{begin_, hearing_};
};

TEST_F(SilenceTest, CountsFromTheLastWord) {
  EXPECT_EQ(After(absl::Seconds(2)), absl::Seconds(2));
  silence_.Heard(now_);
  EXPECT_EQ(After(absl::Seconds(5)), absl::Seconds(3));
}

TEST_F(SilenceTest, BeginsAnewAfterAPause) {
  After(absl::Seconds(2));
  bool woke = false;
  EXPECT_EQ(silence_.Look(now_ += absl::Seconds(60), &woke), absl::ZeroDuration());
  EXPECT_TRUE(woke);
  EXPECT_EQ(silence_.Look(now_ += kLook, &woke), kLook);
  EXPECT_FALSE(woke);
}

TEST_F(SilenceTest, DoesNotCountWhileWhatCameLiesUnread) {
  After(absl::Seconds(2));
  hearing_.Stand(now_);
  EXPECT_EQ(After(absl::Seconds(7)), absl::Seconds(2));
  hearing_.Stand(absl::InfiniteFuture());
  now_ += kLook;
  EXPECT_EQ(silence_.Look(now_), now_ - begin_) << "all was read, and nothing of theirs was in it";
}

TEST_F(SilenceTest, WhatWasNotReadBeforeTheirLastWordMakesItNoShorterThanNothing) {
  hearing_.Stand(begin_);
  After(absl::Seconds(2));
  silence_.Heard(now_);
  EXPECT_EQ(After(absl::Seconds(5)), absl::ZeroDuration());
}

TEST_F(SilenceTest, AProcessThatIsBehindForGoodFindsWhoIsSilentAllTheSame) {
  hearing_.Stand(begin_);
  const absl::Duration silent = absl::Seconds(3);
  EXPECT_LT(After(silent + Silence::kLongestLag - kLook), silent);
  EXPECT_EQ(After(silent + Silence::kLongestLag), silent);
  EXPECT_EQ(silent + Silence::kLongestLag, absl::Seconds(15)) << "as docs/architecture.md says";
}

}  // namespace
}  // namespace runahead
