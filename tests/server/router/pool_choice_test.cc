#include "server/router/pool_choice.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

PoolTerms Terms(const std::string& dtype) {
  PoolTerms terms;
  terms.compute_dtype = terms.kv_dtype = dtype;
  terms.kv_row_order = "token-major k|v";
  return terms;
}
const PoolTerms kF32 = Terms("f32"), kBf16 = Terms("bf16");

TEST(PoolChoice, TheFirstToAnswerDoesNotChoose) {
  PoolChoice pool(3);
  EXPECT_EQ(pool.choice_due(), absl::InfiniteFuture());
  pool.Answered(0, kF32, kStart);
  EXPECT_EQ(pool.Choose(kStart), nullptr);
  pool.Answered(1, kBf16, kStart);
  EXPECT_EQ(pool.Choose(kStart), nullptr);
  pool.Answered(2, kBf16, kStart);
  ASSERT_NE(pool.Choose(kStart), nullptr);
  EXPECT_EQ(*pool.Choose(kStart), kBf16);
}

TEST(PoolChoice, AStrictMajorityOfTheListNeedsNoFurtherAnswers) {
  PoolChoice pool(4);
  pool.Answered(3, kF32, kStart);
  pool.Answered(1, kF32, kStart);
  EXPECT_EQ(pool.Choose(kStart), nullptr);  // half is no majority
  pool.Answered(1, kF32, kStart);           // again: one vote
  EXPECT_EQ(pool.Choose(kStart), nullptr);
  pool.Answered(2, kF32, kStart);
  ASSERT_NE(pool.Choose(kStart), nullptr);
}

TEST(PoolChoice, AfterAWhileMostOfThoseThatHaveAnsweredChoose) {
  PoolChoice pool(100);
  pool.Answered(7, kBf16, kStart);
  pool.Answered(8, kF32, kStart + absl::Seconds(1));
  pool.Answered(9, kF32, kStart + absl::Seconds(9));
  EXPECT_EQ(pool.choice_due(), kStart + kChoiceTimeout);
  EXPECT_EQ(pool.Choose(pool.choice_due() - absl::Milliseconds(1)), nullptr);
  ASSERT_NE(pool.Choose(pool.choice_due()), nullptr);
  EXPECT_EQ(*pool.Choose(pool.choice_due()), kF32);
}

TEST(PoolChoice, OfAsManyTheFirstInTheListChooses) {
  PoolChoice pool(4);
  pool.Answered(3, kF32, kStart);
  pool.Answered(2, kBf16, kStart + absl::Seconds(1));
  pool.Answered(0, kF32, kStart + absl::Seconds(1));
  pool.Answered(1, kBf16, kStart + absl::Seconds(1));
  EXPECT_EQ(*pool.Choose(pool.choice_due()), kF32);
}

TEST(PoolChoice, StaysWhileAnybodyOfThePoolIsLeftWhateverOthersSay) {
  PoolChoice pool(3);
  for (int worker = 0; worker < 2; ++worker) pool.Answered(worker, kF32, kStart);
  ASSERT_EQ(*pool.Choose(kStart), kF32);
  const absl::Time later = kStart + absl::Hours(1);
  pool.Answered(2, kBf16, later);
  pool.Gone(0, later);
  pool.Answered(0, kBf16, later);
  EXPECT_EQ(*pool.Choose(later), kF32);
  pool.Gone(1, later);  // nobody has it any more: those who wait choose anew
  ASSERT_NE(pool.Choose(later), nullptr);
  EXPECT_EQ(*pool.Choose(later), kBf16);
}

TEST(PoolChoice, WhoIsGoneHasNoVoteAndAnEmptyPoolWaitsAgain) {
  PoolChoice pool(3);
  pool.Answered(0, kF32, kStart);
  pool.Gone(0, kStart);
  EXPECT_EQ(pool.choice_due(), absl::InfiniteFuture());
  EXPECT_EQ(pool.Choose(kStart + absl::Hours(1)), nullptr);
  const absl::Time later = kStart + absl::Hours(2);
  pool.Answered(1, kBf16, later);
  EXPECT_EQ(pool.Choose(later), nullptr);
  EXPECT_EQ(*pool.Choose(later + kChoiceTimeout), kBf16);
}

TEST(PoolChoice, WhoWaitedWhileThereWasAPoolDoesNotChooseAloneWhenItIsGone) {
  PoolChoice pool(3);
  for (int worker = 0; worker < 2; ++worker) pool.Answered(worker, kF32, kStart);
  ASSERT_NE(pool.Choose(kStart), nullptr);
  const absl::Time later = kStart + absl::Hours(1);
  pool.Answered(2, kBf16, later);
  for (int worker = 0; worker < 2; ++worker) pool.Gone(worker, later);
  EXPECT_EQ(pool.Choose(later), nullptr);
  for (int worker = 0; worker < 2; ++worker) pool.Answered(worker, kF32, later);  // they were restarted
  EXPECT_EQ(*pool.Choose(later), kF32);
}

TEST(PoolChoice, WhoCannotJoinAnywayIsNotWaitedFor) {
  PoolChoice pool(4);
  for (const int worker : {0, 3}) pool.Answered(worker, kBf16, kStart);
  pool.Refused(1);
  EXPECT_EQ(*pool.Choose(kStart), kBf16);
  PoolChoice other(4);
  other.Refused(1);
  for (const int worker : {0, 1}) other.Answered(worker, kBf16, kStart);  // it was started anew
  EXPECT_EQ(other.Choose(kStart), nullptr);
}

TEST(PoolChoice, TheLayoutOfKvIsPartOfIt) {
  PoolTerms other = kF32;
  other.kv_row_order = "head-major";
  PoolChoice pool(3);
  pool.Answered(0, other, kStart);
  pool.Answered(1, kF32, kStart);
  EXPECT_EQ(pool.Choose(kStart), nullptr);
  pool.Answered(2, kF32, kStart);
  EXPECT_EQ(*pool.Choose(kStart), kF32);
}

}  // namespace
}  // namespace runahead
