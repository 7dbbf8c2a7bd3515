#include "server/router/pool_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace runahead {
namespace {

const absl::Time kBegin = absl::FromUnixSeconds(1'000'000);

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
  pool.Answered(0, kF32, kBegin);
  EXPECT_EQ(pool.Choose(kBegin), nullptr);
  pool.Answered(1, kBf16, kBegin);
  EXPECT_EQ(pool.Choose(kBegin), nullptr);
  pool.Answered(2, kBf16, kBegin);
  ASSERT_NE(pool.Choose(kBegin), nullptr);
  EXPECT_EQ(*pool.Choose(kBegin), kBf16);
}

TEST(PoolChoice, AStrictMajorityOfTheListNeedsNoFurtherAnswers) {
  PoolChoice pool(4);
  pool.Answered(3, kF32, kBegin);
  pool.Answered(1, kF32, kBegin);
  EXPECT_EQ(pool.Choose(kBegin), nullptr);  // half is no majority
  pool.Answered(1, kF32, kBegin);           // again: one vote
  EXPECT_EQ(pool.Choose(kBegin), nullptr);
  pool.Answered(2, kF32, kBegin);
  ASSERT_NE(pool.Choose(kBegin), nullptr);
}

TEST(PoolChoice, AfterAWhileMostOfThoseThatHaveAnsweredChoose) {
  PoolChoice pool(100);
  pool.Answered(7, kBf16, kBegin);
  pool.Answered(8, kF32, kBegin + absl::Seconds(1));
  pool.Answered(9, kF32, kBegin + absl::Seconds(9));
  EXPECT_EQ(pool.choice_due(), kBegin + kChoiceTimeout);
  EXPECT_EQ(pool.Choose(pool.choice_due() - absl::Milliseconds(1)), nullptr);
  ASSERT_NE(pool.Choose(pool.choice_due()), nullptr);
  EXPECT_EQ(*pool.Choose(pool.choice_due()), kF32);
}

TEST(PoolChoice, OfAsManyTheFirstInTheListChooses) {
  std::vector<int> order = {0, 1, 2, 3};  // in which they answer, which decides nothing
  do {
    PoolChoice pool(4);
    for (size_t i = 0; i < order.size(); ++i) {
      const int worker = order[i];
      pool.Answered(worker, worker == 0 || worker == 3 ? kF32 : kBf16, kBegin + absl::Seconds(i));
    }
    EXPECT_EQ(pool.Choose(pool.choice_due())->compute_dtype, "f32") << "worker " << order[0] << " answered first";
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(PoolChoice, StaysWhileAnybodyOfThePoolIsLeftWhateverOthersSay) {
  PoolChoice pool(3);
  for (int worker = 0; worker < 2; ++worker) pool.Answered(worker, kF32, kBegin);
  ASSERT_EQ(*pool.Choose(kBegin), kF32);
  const absl::Time later = kBegin + absl::Hours(1);
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
  pool.Answered(0, kF32, kBegin);
  pool.Gone(0, kBegin);
  EXPECT_EQ(pool.choice_due(), absl::InfiniteFuture());
  EXPECT_EQ(pool.Choose(kBegin + absl::Hours(1)), nullptr);
  const absl::Time later = kBegin + absl::Hours(2);
  pool.Answered(1, kBf16, later);
  EXPECT_EQ(pool.Choose(later), nullptr);
  EXPECT_EQ(*pool.Choose(later + kChoiceTimeout), kBf16);
}

TEST(PoolChoice, WhoWaitedWhileThereWasAPoolDoesNotChooseAloneWhenItIsGone) {
  PoolChoice pool(3);
  for (int worker = 0; worker < 2; ++worker) pool.Answered(worker, kF32, kBegin);
  ASSERT_NE(pool.Choose(kBegin), nullptr);
  const absl::Time later = kBegin + absl::Hours(1);
  pool.Answered(2, kBf16, later);
  for (int worker = 0; worker < 2; ++worker) pool.Gone(worker, later);
  EXPECT_EQ(pool.Choose(later), nullptr);
  for (int worker = 0; worker < 2; ++worker) pool.Answered(worker, kF32, later);  // they were restarted
  EXPECT_EQ(*pool.Choose(later), kF32);
}

TEST(PoolChoice, WhoCannotJoinAnywayIsNotWaitedFor) {
  PoolChoice pool(4);
  for (const int worker : {0, 3}) pool.Answered(worker, kBf16, kBegin);
  pool.Refused(1);
  EXPECT_EQ(*pool.Choose(kBegin), kBf16);
  PoolChoice other(4);
  other.Refused(1);
  for (const int worker : {0, 1}) other.Answered(worker, kBf16, kBegin);  // it was started anew
  EXPECT_EQ(other.Choose(kBegin), nullptr);
}

TEST(PoolChoice, TheLayoutOfKvIsPartOfIt) {
  PoolTerms other = kF32;
  other.kv_row_order = "head-major";
  PoolChoice pool(3);
  pool.Answered(0, other, kBegin);
  pool.Answered(1, kF32, kBegin);
  EXPECT_EQ(pool.Choose(kBegin), nullptr);
  pool.Answered(2, kF32, kBegin);
  EXPECT_EQ(*pool.Choose(kBegin), kF32);
}

}  // namespace
}  // namespace runahead
