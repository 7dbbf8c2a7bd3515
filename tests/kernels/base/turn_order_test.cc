#include "kernels/base/turn_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/time/time.h"

namespace runahead {
namespace {

constexpr absl::Duration kMs = absl::Milliseconds(1);

class TurnOrderTest : public testing::Test {
 protected:
  bool Take(LoopKind kind) { return order_.Take(kind, now_); }
  bool Pass() { return order_.Pass(now_); }
  void End(LoopKind kind) { order_.End(kind, now_); }

  TurnOrder order_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(TurnOrderTest, WhoIsAloneNeverWaits) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Take(LoopKind::kOrdinary));
    now_ += 100 * kMs;
    EXPECT_FALSE(Pass());
    End(LoopKind::kOrdinary);
  }
  EXPECT_FALSE(order_.waiting());
}

TEST_F(TurnOrderTest, AStepBeginsAtOnceBetweenTwoItemsOfALongLoop) {
  EXPECT_TRUE(Take(LoopKind::kOrdinary));
  now_ += 100 * kMs;
  EXPECT_TRUE(Take(LoopKind::kFirst));
  EXPECT_EQ(order_.turn(), LoopKind::kFirst);
}

TEST_F(TurnOrderTest, TheTurnIsKeptBetweenTheLoopsOfAStepAndNotBehindIt) {
  EXPECT_TRUE(Take(LoopKind::kFirst));
  End(LoopKind::kFirst);
  now_ += TurnOrder::kBetweenLoops / 2;
  EXPECT_FALSE(Take(LoopKind::kOrdinary));
  EXPECT_TRUE(Take(LoopKind::kFirst));
  End(LoopKind::kFirst);
  now_ += TurnOrder::kBetweenLoops;
  EXPECT_TRUE(Take(LoopKind::kOrdinary));
}

TEST_F(TurnOrderTest, AnEndThatIsSaidAgainIsTheFirstOne) {
  EXPECT_TRUE(Take(LoopKind::kFirst));
  EXPECT_FALSE(Take(LoopKind::kOrdinary));
  End(LoopKind::kFirst);
  for (int i = 0; i < 10; ++i) {
    now_ += TurnOrder::kBetweenLoops / 10;
    End(LoopKind::kFirst);
  }
  EXPECT_TRUE(Take(LoopKind::kOrdinary));
}

TEST_F(TurnOrderTest, WhoWithdrewGetsNoTurn) {
  EXPECT_TRUE(Take(LoopKind::kFirst));
  EXPECT_FALSE(Take(LoopKind::kOrdinary));
  order_.Withdraw(LoopKind::kOrdinary);
  EXPECT_FALSE(order_.waiting());
  now_ += TurnOrder::kMostLead;
  EXPECT_FALSE(Pass());
}

TEST_F(TurnOrderTest, WhatGoesFirstIsAheadByABoundedTime) {
  EXPECT_TRUE(Take(LoopKind::kFirst));
  now_ += 50 * kMs;  // nobody else wanted it
  EXPECT_FALSE(Take(LoopKind::kOrdinary));
  now_ += TurnOrder::kMostLead - absl::Nanoseconds(1);
  EXPECT_FALSE(Pass());
  now_ += absl::Nanoseconds(1);
  EXPECT_TRUE(Pass());
  EXPECT_EQ(order_.turn(), LoopKind::kOrdinary);
  // The step waits until both had as much since they both wanted it.
  EXPECT_FALSE(Take(LoopKind::kFirst));
  now_ += TurnOrder::kMostLead;
  EXPECT_TRUE(Pass());
}

TEST_F(TurnOrderTest, WhoHasTheTurnByAPassKeepsItUntilItsThreadIsAwake) {
  EXPECT_TRUE(Take(LoopKind::kFirst));
  EXPECT_FALSE(Take(LoopKind::kOrdinary));
  now_ += TurnOrder::kMostLead;
  End(LoopKind::kFirst);
  EXPECT_TRUE(Pass());
  EXPECT_FALSE(Take(LoopKind::kFirst)) << "its next loop comes before the other's thread has woken";
}

TEST_F(TurnOrderTest, WhatALongItemTookIsMadeUpFor) {
  EXPECT_TRUE(Take(LoopKind::kOrdinary));
  EXPECT_TRUE(Take(LoopKind::kFirst));
  EXPECT_FALSE(Take(LoopKind::kOrdinary));  // it goes on with its loop
  now_ += TurnOrder::kMostLead;
  EXPECT_TRUE(Pass());
  EXPECT_FALSE(Take(LoopKind::kFirst));
  now_ += 30 * kMs;  // an item
  EXPECT_TRUE(Pass());
  EXPECT_FALSE(Take(LoopKind::kOrdinary));
  now_ += 30 * kMs - absl::Nanoseconds(1);
  EXPECT_FALSE(Pass());
  now_ += absl::Nanoseconds(1);
  EXPECT_TRUE(Pass());
}

// Steps of 240 loops of 30 us each, without an end, beside loops of 200 items of 0.3 ms: what two streams do.
TEST_F(TurnOrderTest, BesideEachOtherEachHasHalfAndAStepTakesTwiceItsTime) {
  constexpr absl::Duration kLoop = absl::Microseconds(30), kGap = absl::Microseconds(5);
  constexpr absl::Duration kItem = absl::Microseconds(300);
  const absl::Time begin = now_;
  absl::Duration first_had, longest;
  absl::Time step_began = now_;
  int loops = 0;
  EXPECT_TRUE(Take(LoopKind::kOrdinary));
  while (now_ < begin + absl::Seconds(10)) {
    if (!Take(LoopKind::kFirst)) {  // an item, or items, of the others
      do {
        now_ += kItem;
      } while (!Pass());
    }
    now_ += kLoop;
    first_had += kLoop;
    End(LoopKind::kFirst);
    if (!Pass()) Take(LoopKind::kOrdinary);  // it waits from then on
    if (order_.turn() == LoopKind::kFirst) {
      now_ += kGap;
      first_had += kGap;
    }
    if (++loops % 240 > 0) continue;
    longest = std::max(longest, now_ - step_began);
    step_began = now_;
  }
  const double share = absl::FDivDuration(first_had, now_ - begin);
  EXPECT_GT(share, 0.45);
  EXPECT_LT(share, 0.55);
  EXPECT_LT(longest, 240 * (kLoop + kGap) * 2 + TurnOrder::kMostLead + kItem);
}

}  // namespace
}  // namespace runahead
