#include "scheduler/placement/first_token.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(ExpectFirstToken, WithoutKnowledgeIsAtOnce) {
  EXPECT_EQ(ExpectFirstToken({}), 0);
  EXPECT_EQ(ExpectFirstToken({.slots_ahead = 100}), 0) << "nobody has given a slot back yet";
  EXPECT_EQ(ExpectFirstToken({.slots_ahead = 0, .ends_s = {7}}), 0) << "it may end much sooner than at the latest";
}

TEST(ExpectFirstToken, IsBehindThePromptsThatGoFirst) {
  EXPECT_DOUBLE_EQ(ExpectFirstToken({.prefill_s = 1, .backlog_s = 2, .ahead_s = 6, .prefill_workers = 3}), 5);
}

TEST(ExpectFirstToken, IsWhenASlotIsGivenBackForIt) {
  EXPECT_DOUBLE_EQ(ExpectFirstToken({.prefill_s = 1, .slots_ahead = 9, .free_slots = 0, .slots_per_s = 2}), 5);
  EXPECT_DOUBLE_EQ(ExpectFirstToken({.prefill_s = 9, .slots_ahead = 9, .slots_per_s = 2}), 9) << "beside each other";
}

TEST(ExpectFirstToken, WhereNothingGoesFirstNobodyIsKeptFromShowingWhatItTakes) {
  EXPECT_EQ(ExpectFirstToken({.prefill_s = 1000, .slots_ahead = 9, .free_slots = 10, .slots_per_s = 2}), 0);
  EXPECT_EQ(ExpectFirstToken({.prefill_s = 1000}), 0) << "it needs no slot";
  EXPECT_EQ(ExpectFirstToken({.prefill_s = 1000, .backlog_s = 1}), 1001);
  EXPECT_EQ(ExpectFirstToken({.prefill_s = 1000, .slots_per_s = 2}), 1000) << "no slot is free";
}

TEST(ExpectFirstToken, IsNoLaterThanSequencesEnd) {
  // By what leases took before, the second slot is given back in 20 s.
  const FirstTokenView view{.prefill_s = 1, .slots_ahead = 1, .slots_per_s = 0.1, .ends_s = {9, 2, 30, 3}};
  EXPECT_DOUBLE_EQ(ExpectFirstToken(view), 3);
  FirstTokenView late = view;
  late.ends_s = {90, 80};
  EXPECT_DOUBLE_EQ(ExpectFirstToken(late), 20) << "they end then at the latest";
  late.ends_s = {2};
  EXPECT_DOUBLE_EQ(ExpectFirstToken(late), 20) << "the second end is not known";
}

}  // namespace
}  // namespace runahead
