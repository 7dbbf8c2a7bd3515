#include "server/router/edge_states.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

const WorkerLife kA{10, 0}, kB{20, 3}, kDecode{30, 1};
const absl::Time kStart = absl::UnixEpoch();

v1::PathState State(const WorkerLife& peer, uint32_t generation, v1::PathCondition condition) {
  v1::PathState state;
  state.mutable_peer()->set_incarnation(peer.incarnation);
  state.mutable_peer()->set_epoch(peer.epoch);
  state.set_generation(generation);
  state.set_condition(condition);
  return state;
}

TEST(EdgeStates, AnEdgeThatBrokeIsRemadeAfterAPauseAndUsedOnceBothEndsAreUp) {
  EdgeStates edges;
  EXPECT_EQ(edges.Generation(kA, kB), 1u);
  EXPECT_EQ(edges.Generation(kB, kA), 1u);
  EXPECT_TRUE(edges.Usable(kA, kB));
  EXPECT_TRUE(edges.Report(kA, State(kB, 1, v1::PATH_CONDITION_BROKEN), kStart));
  EXPECT_FALSE(edges.Usable(kA, kB));
  EXPECT_FALSE(edges.Report(kB, State(kA, 1, v1::PATH_CONDITION_BROKEN), kStart)) << "known already";
  EXPECT_FALSE(edges.Renew(kStart + absl::Milliseconds(99)));
  EXPECT_TRUE(edges.Renew(kStart + absl::Milliseconds(100)));
  EXPECT_EQ(edges.Generation(kA, kB), 2u);
  EXPECT_FALSE(edges.Usable(kA, kB));
  EXPECT_FALSE(edges.Report(kB, State(kA, 1, v1::PATH_CONDITION_UP), kStart)) << "of the former making";
  EXPECT_FALSE(edges.Report(kA, State(kB, 2, v1::PATH_CONDITION_UP), kStart));
  EXPECT_TRUE(edges.Report(kB, State(kA, 2, v1::PATH_CONDITION_UP), kStart));
  EXPECT_TRUE(edges.Usable(kB, kA));
}

TEST(EdgeStates, AnEdgeOpensIsUpOnceBothEndsSaySoAndIsBrokenWhenOneDoes) {
  EdgeStates edges;
  EXPECT_EQ(edges.StateOf(kA, kB), EdgeState::kOpening);
  edges.Generation(kA, kB);
  edges.Report(kA, State(kB, 1, v1::PATH_CONDITION_UP), kStart);
  EXPECT_EQ(edges.StateOf(kA, kB), EdgeState::kOpening);
  edges.Report(kB, State(kA, 1, v1::PATH_CONDITION_UP), kStart);
  EXPECT_EQ(edges.StateOf(kB, kA), EdgeState::kUp);
  edges.Report(kB, State(kA, 1, v1::PATH_CONDITION_BROKEN), kStart);
  EXPECT_EQ(edges.StateOf(kA, kB), EdgeState::kBroken);
  edges.Renew(kStart + absl::Seconds(1));
  EXPECT_EQ(edges.StateOf(kA, kB), EdgeState::kOpening);
}

TEST(EdgeStates, PausesGrowToFiveSecondsAndBeginAnewOnceTheEdgeWorked) {
  EdgeStates edges;
  absl::Time now = kStart;
  uint32_t generation = edges.Generation(kA, kB);
  for (const int milliseconds : {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    edges.Report(kA, State(kB, generation, v1::PATH_CONDITION_BROKEN), now);
    EXPECT_FALSE(edges.Renew(now + absl::Milliseconds(milliseconds - 1)));
    now += absl::Milliseconds(milliseconds);
    EXPECT_TRUE(edges.Renew(now)) << milliseconds;
    EXPECT_EQ(edges.Generation(kA, kB), ++generation);
  }
  edges.Report(kA, State(kB, generation, v1::PATH_CONDITION_UP), now);
  edges.Report(kB, State(kA, generation, v1::PATH_CONDITION_UP), now);
  edges.Report(kB, State(kA, generation, v1::PATH_CONDITION_BROKEN), now);
  EXPECT_TRUE(edges.Renew(now + absl::Milliseconds(100)));
}

TEST(EdgeStates, ADecodeWorkerOutOfReachIsSoForThatPrefillWorkerAlone) {
  EdgeStates edges;
  EXPECT_TRUE(edges.Report(kA, State(kDecode, 0, v1::PATH_CONDITION_BROKEN), kStart));
  EXPECT_FALSE(edges.Reaches(kA, kDecode));
  EXPECT_TRUE(edges.Reaches(kB, kDecode));
  EXPECT_TRUE(edges.Report(kA, State(kDecode, 0, v1::PATH_CONDITION_UP), kStart));
  EXPECT_TRUE(edges.Reaches(kA, kDecode));
}

const WorkerPath kEdge{WorkerPath::Kind::kEdge, kA, kB}, kHandoff{WorkerPath::Kind::kHandoff, kA, kDecode};

TEST(EdgeStates, APathThatAJobFailedOverIsNotUsedUntilItsPrefillEndsHaveAnswered) {
  EdgeStates edges;
  edges.Doubt(kEdge, kStart);
  EXPECT_FALSE(edges.Usable(kA, kB));
  EXPECT_FALSE(edges.Usable(kB, kA));
  EXPECT_TRUE(edges.Reaches(kA, kDecode));
  EXPECT_FALSE(edges.Answer(kA, edges.Question(kA)));
  EXPECT_FALSE(edges.Answer(kA, edges.Question(kA))) << "once is enough, and not for both";
  EXPECT_FALSE(edges.Usable(kA, kB));
  EXPECT_TRUE(edges.Answer(kB, edges.Question(kB)));
  EXPECT_TRUE(edges.Usable(kA, kB));

  edges.Doubt(kHandoff, kStart);
  EXPECT_FALSE(edges.Reaches(kA, kDecode));
  EXPECT_TRUE(edges.Reaches(kB, kDecode));
  EXPECT_EQ(edges.Question(kDecode), 0u) << "it does not know who reaches it";
  EXPECT_TRUE(edges.Answer(kA, edges.Question(kA)));
  EXPECT_TRUE(edges.Reaches(kA, kDecode));
}

TEST(EdgeStates, AnAnswerToAnEarlierQuestionSettlesNoLaterDoubt) {
  EdgeStates edges;
  edges.Doubt(kHandoff, kStart);
  const uint64_t first = edges.Question(kA);
  edges.Doubt(kHandoff, kStart);
  EXPECT_GT(edges.Question(kA), first);
  EXPECT_FALSE(edges.Answer(kA, 0)) << "a report that nobody asked for";
  EXPECT_FALSE(edges.Answer(kA, first));
  EXPECT_FALSE(edges.Reaches(kA, kDecode));
  EXPECT_TRUE(edges.Answer(kA, edges.Question(kA)));
  // One answer settles all that was asked before it.
  edges.Doubt(kHandoff, kStart);
  edges.Doubt({WorkerPath::Kind::kHandoff, kA, kB}, kStart);
  EXPECT_TRUE(edges.Answer(kA, edges.Question(kA)));
  EXPECT_TRUE(edges.Reaches(kA, kDecode) && edges.Reaches(kA, kB));
}

TEST(EdgeStates, WhatTheEndsSayCountsOnceTheDoubtIsOver) {
  EdgeStates edges;
  edges.Generation(kA, kB);
  edges.Doubt(kEdge, kStart);
  edges.Report(kA, State(kB, 1, v1::PATH_CONDITION_BROKEN), kStart);
  edges.Answer(kA, edges.Question(kA));
  edges.Answer(kB, edges.Question(kB));
  EXPECT_FALSE(edges.Usable(kA, kB));
}

TEST(EdgeStates, NobodyIsAskedOfAPathThatIsKnownNotToWork) {
  EdgeStates edges;
  edges.Generation(kA, kB);
  edges.Report(kA, State(kB, 1, v1::PATH_CONDITION_BROKEN), kStart);
  edges.Report(kA, State(kDecode, 0, v1::PATH_CONDITION_BROKEN), kStart);
  edges.Doubt(kEdge, kStart);
  edges.Doubt(kHandoff, kStart);
  EXPECT_EQ(edges.Question(kA), 0u);
  EXPECT_FALSE(edges.EndDoubts(kStart + absl::Hours(1)));
}

TEST(EdgeStates, ADoubtThatIsNotAnsweredIsOverAfterATime) {
  EdgeStates edges;
  edges.Doubt(kEdge, kStart);
  edges.Doubt(kHandoff, kStart + absl::Seconds(1));
  EXPECT_FALSE(edges.EndDoubts(kStart + EdgeStates::kDoubtTimeout - absl::Milliseconds(1)));
  EXPECT_TRUE(edges.EndDoubts(kStart + EdgeStates::kDoubtTimeout));
  EXPECT_TRUE(edges.Usable(kA, kB));
  EXPECT_FALSE(edges.Reaches(kA, kDecode));
}

TEST(EdgeStates, NothingIsLeftOfALifeThatIsOver) {
  EdgeStates edges;
  edges.Generation(kA, kB);
  edges.Report(kA, State(kB, 1, v1::PATH_CONDITION_BROKEN), kStart);
  edges.Report(kA, State(kDecode, 0, v1::PATH_CONDITION_BROKEN), kStart);
  edges.Doubt(kEdge, kStart);
  edges.Doubt(kHandoff, kStart);
  edges.Forget(kA);
  EXPECT_EQ(edges.Question(kA), 0u);
  edges.Doubt(kHandoff, kStart);  // the failure was known before the end
  EXPECT_TRUE(edges.Usable(kA, kB));
  EXPECT_TRUE(edges.Reaches(kA, kDecode));
  EXPECT_FALSE(edges.Renew(kStart + absl::Hours(1)));
  // What was said of it before its end was known, and comes after.
  EXPECT_FALSE(edges.Report(kB, State(kA, 0, v1::PATH_CONDITION_BROKEN), kStart));
  EXPECT_TRUE(edges.Reaches(kB, kA));
  // Its next epoch is another worker, with an edge of its own.
  EXPECT_EQ(edges.Generation({kA.incarnation, kA.epoch + 1}, kB), 1u);
}

}  // namespace
}  // namespace runahead
