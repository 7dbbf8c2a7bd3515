#include "scheduler/batching/step_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PlanStep, JoinsInOrderOfArrivalAsFarAsThereIsRoom) {
  const StepPlan plan = PlanStep({7, 3}, {9, 1, 8}, {4});
  EXPECT_THAT(plan.rows, ElementsAre(7, 3, 9, 1));
  EXPECT_EQ(plan.joined, 2u);
}

TEST(PlanStep, RunningSequencesStay) {
  EXPECT_THAT(PlanStep({1, 2}, {3}, {2}).rows, ElementsAre(1, 2));
  const StepPlan shrunk = PlanStep({1, 2, 3}, {4}, {2});
  EXPECT_THAT(shrunk.rows, ElementsAre(1, 2, 3));
  EXPECT_EQ(shrunk.joined, 0u);
}

TEST(PlanStep, NothingToRunIsAnEmptyStep) {
  EXPECT_THAT(PlanStep({}, {}, {8}).rows, IsEmpty());
}

}  // namespace
}  // namespace runahead
