#include "server/router/prompt_scores.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

v1::PromptScores Scores(int index, int count) {
  v1::PromptScores scores;
  scores.set_index(index);
  for (int i = index; i < index + count; ++i) scores.add_logprobs()->add_top()->set_id(i);
  return scores;
}

// Takes all that are ready, and returns how many were; each follows the one before.
int TakeAll(PromptScoreOrder& order, int& next) {
  int taken = 0;
  while (const auto scores = order.Take()) {
    EXPECT_EQ(scores->index(), next);
    for (const v1::TokenLogprobs& logprobs : scores->logprobs()) {
      EXPECT_EQ(logprobs.top(0).id(), next++);
      ++taken;
    }
  }
  return taken;
}

TEST(PromptScoreOrder, ComesInThePromptsOrderWhateverMemberIsFirst) {
  PromptScoreOrder order({4, 3, 5});
  int next = 1;
  EXPECT_EQ(order.Add(2, Scores(8, 4)), absl::OkStatus());
  EXPECT_TRUE(order.Complete(2));
  EXPECT_FALSE(order.Complete(0));
  EXPECT_FALSE(order.Ready());
  EXPECT_EQ(order.Add(0, Scores(1, 2)), absl::OkStatus());
  EXPECT_EQ(TakeAll(order, next), 2);
  EXPECT_EQ(order.Add(1, Scores(5, 3)), absl::OkStatus());
  EXPECT_EQ(TakeAll(order, next), 0);
  EXPECT_EQ(order.Add(0, Scores(3, 2)), absl::OkStatus());
  EXPECT_FALSE(order.done());
  EXPECT_EQ(TakeAll(order, next), 9);
  EXPECT_EQ(next, 12);
  EXPECT_TRUE(order.done());
  EXPECT_FALSE(order.Ready());
}

TEST(PromptScoreOrder, TheTailsOnlyTokenHasNothingBehindIt) {
  PromptScoreOrder one({1});
  EXPECT_TRUE(one.done());
  EXPECT_TRUE(one.Complete(0));
  PromptScoreOrder order({2, 1});
  EXPECT_TRUE(order.Complete(1));
  EXPECT_EQ(order.Add(0, Scores(1, 2)), absl::OkStatus());
  int next = 1;
  EXPECT_EQ(TakeAll(order, next), 2);
  EXPECT_TRUE(order.done());
}

TEST(PromptScoreOrder, RefusesWhatDoesNotFollow) {
  PromptScoreOrder order({4, 4});
  EXPECT_THAT(order.Add(0, Scores(2, 1)).message(), HasSubstr("[2, 3) where those from 1 to 5 are left"));
  EXPECT_FALSE(order.Add(0, Scores(1, 5)).ok());
  EXPECT_FALSE(order.Add(0, Scores(1, 0)).ok());
  EXPECT_FALSE(order.Add(1, Scores(5, 4)).ok());  // behind the prompt's end
  v1::PromptScores empty = Scores(1, 1);
  empty.mutable_logprobs(0)->clear_top();
  EXPECT_FALSE(order.Add(0, empty).ok());
  EXPECT_EQ(order.Add(0, Scores(1, 4)), absl::OkStatus());
  EXPECT_FALSE(order.Add(0, Scores(1, 4)).ok());
  EXPECT_EQ(order.Add(1, Scores(5, 3)), absl::OkStatus());
  int next = 1;
  EXPECT_EQ(TakeAll(order, next), 7);
}

}  // namespace
}  // namespace runahead
