#include "scheduler/batching/row_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace runahead {
namespace {

using testing::ElementsAre;

std::vector<int64_t> Grant(const std::vector<PendingRows>& pending, int64_t budget) {
  return GrantRows(pending, {.all = budget, .output = budget});
}

constexpr PendingRows kDecodes = {.output = 1};

TEST(RowsBeside, EachPromptThatWaitsHasItsRowsUpToTheLongestPass) {
  constexpr PendingRows kWaits = {.prompt = 500};
  EXPECT_EQ(RowsBeside({kDecodes, kWaits}, 8, 128), 8);
  EXPECT_EQ(RowsBeside({kWaits, kDecodes, kWaits, {.prompt = 1}, kDecodes}, 8, 128), 24);
  EXPECT_EQ(RowsBeside(std::vector<PendingRows>(17, kWaits), 8, 128), 128) << "nobody decodes";
  std::vector<PendingRows> many(17, kWaits);
  many.push_back(kDecodes);
  EXPECT_EQ(RowsBeside(many, 8, 128), 128);
}

TEST(RowsBeside, OutputThatIsComputedAgainIsNoPrompt) {
  EXPECT_EQ(RowsBeside({kDecodes, {.output = 40}, {.output = 3}}, 8, 128), 8);
  EXPECT_EQ(RowsBeside({kDecodes, {.output = 40}, {.prompt = 5, .output = 3}, {.prompt = 9}}, 8, 128), 16);
  EXPECT_EQ(RowsBeside({{.output = 40}}, 8, 128), 128);
}

TEST(GrantRows, OneThatDecodesHasItsRowWhateverTheBudget) {
  EXPECT_THAT(Grant({{.prompt = 500}, kDecodes, {.prompt = 20}, kDecodes}, 16), ElementsAre(16, 1, 0, 1));
}

TEST(GrantRows, WhoJoinedFirstHasAsManyAsItCanUse) {
  EXPECT_THAT(Grant({{.prompt = 5}, {.prompt = 9}, {.prompt = 100}}, 16), ElementsAre(5, 9, 2));
}

TEST(GrantRows, OutputComesInAStepBehindThePrompt) {
  EXPECT_THAT(Grant({{.prompt = 3, .output = 40}}, 16), ElementsAre(3));
  EXPECT_THAT(Grant({{.output = 40}}, 16), ElementsAre(16));
  EXPECT_THAT(Grant({{.output = 2}}, 16), ElementsAre(2));
}

TEST(GrantRows, RowsOfOutputHaveABudgetOfTheirOwn) {
  EXPECT_THAT(GrantRows({{.output = 40}, {.prompt = 500}, {.output = 9}}, {.all = 100, .output = 16}),
              ElementsAre(16, 84, 0));
  EXPECT_THAT(GrantRows({{.output = 10}, {.output = 9}, kDecodes}, {.all = 100, .output = 16}), ElementsAre(10, 6, 1));
  EXPECT_THAT(GrantRows({{.prompt = 95}, {.output = 9}}, {.all = 100, .output = 16}), ElementsAre(95, 5));
}

TEST(GrantRows, ThePromptsLastRowMayBeAllThatIsPending) {
  EXPECT_THAT(Grant({kDecodes, {.prompt = 1}}, 1), ElementsAre(1, 1));
}

}  // namespace
}  // namespace runahead
