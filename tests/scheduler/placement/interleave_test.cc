#include "scheduler/placement/interleave.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(InterleaveBudget, IsAQuarterOfThePartAndCountsShortPromptsAsTheLeast) {
  InterleaveBudget budget(400);
  EXPECT_TRUE(budget.Fits(100));
  EXPECT_FALSE(budget.Fits(101));
  budget.Take(68);
  EXPECT_TRUE(budget.Fits(32));
  EXPECT_FALSE(budget.Fits(33));
  EXPECT_EQ(budget.Longest(), 32);
  budget.Take(1);
  EXPECT_FALSE(budget.Fits(1));
  EXPECT_EQ(budget.Longest(), 0);
  budget.GiveBack(1);
  EXPECT_TRUE(budget.Fits(32));
  EXPECT_FALSE(budget.Fits(33));
}

TEST(InterleaveBudget, APartThatIsShortItselfLetsNothingIn) {
  EXPECT_FALSE(InterleaveBudget().Fits(1));
  EXPECT_FALSE(InterleaveBudget(127).Fits(1));
  EXPECT_TRUE(InterleaveBudget(128).Fits(1));
}

}  // namespace
}  // namespace runahead
