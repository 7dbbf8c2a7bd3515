#include "worker/prefill/tsp_exchange.h"

#include <gtest/gtest.h>

#include "tests/testing/chain_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

constexpr LoopbackNetwork::Delivery kManual = LoopbackNetwork::Delivery::kManual;

class TspExchangeTest : public ::testing::TestWithParam<Schedule> {
 protected:
  TspExchangeTest() : loaded_(LoadForTest(WriteSynthetic(SmallModel(), "tsp"), DType::kF32, 2)) {}

  WholeRun RunOn(TestChain& chain, JobId job, const std::vector<int64_t>& bounds, const std::vector<int32_t>& ids) {
    return RunWhole(loaded_, chain, job, bounds, ids, GetParam());
  }
  void Start(TestChain& chain, JobId job, int first, const std::vector<int64_t>& bounds,
             absl::Time deadline = absl::InfiniteFuture()) {
    chain.Start(job, first, bounds, RandomIds(bounds.back(), 320, 20), {}, true, deadline, GetParam());
  }
  // Delivers until the job has ended at all of `members`.
  static void Settle(TestChain& chain, JobId job, const std::vector<int>& members) {
    EXPECT_TRUE(chain.DeliverUntilDone(job, members));
  }

  const LoadedModel loaded_;
};

TEST_P(TspExchangeTest, AnyPartitionGivesTheLogitsAndKvOfTheReference) {
  const std::vector<std::vector<int64_t>> partitions = {
      {0, 1},
      {0, 33},
      {0, 1, 2},
      {0, 1, 2, 3},
      {0, 1, 2, 3, 4},
      {0, 2, 3, 4, 5},
      {0, 6, 11},
      {0, 150, 300},
      {0, 1, 300},
      {0, 299, 300},
      {0, 67, 134, 200},
      {0, 1, 199, 200},
      {0, 75, 150, 225, 300},
      {0, 200, 201, 202, 300},
  };
  const std::vector<int32_t> ids = RandomIds(300, 320, 11);
  const ExpectedRun reference = ReferenceRun(loaded_, ids);
  for (const std::vector<int64_t>& bounds : partitions) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    TestChain chain(loaded_, static_cast<int>(bounds.size()) - 1, bounds.back());
    ExpectRun(RunOn(chain, 1, bounds, {ids.begin(), ids.begin() + bounds.back()}), reference.First(bounds.back()));
    EXPECT_EQ(chain.live_edge_jobs(), 0u);
  }
}

TEST_P(TspExchangeTest, ARingOfThreeBuffersOfTheWholePromptGivesTheSame) {
  const std::vector<int32_t> ids = RandomIds(200, 320, 13);
  TestChain chain(loaded_, 3, 200, kMinLayerSlots);
  ExpectRun(RunOn(chain, 1, {0, 90, 150, 200}, ids), ReferenceRun(loaded_, ids));
}

TEST_P(TspExchangeTest, TellsHowLongTheKvOfTheOthersWasOnTheWire) {
  TestChain chain(loaded_, 2, 300);
  RunOn(chain, 1, {0, 150, 300}, RandomIds(300, 320, 12));
  for (const int member : {0, 1}) {
    const JobTimes times = chain.member(member).news.times(1);
    EXPECT_GT(times.transfer_s, 0);
    EXPECT_LE(times.hidden_s, times.transfer_s);
  }
}

TEST_P(TspExchangeTest, EveryMemberNeedsMemoryForTheWholePrompt) {
  TestChain chain(loaded_, 2, 30, kMinLayerSlots);
  Start(chain, 1, 0, {0, 10, 31});
  EXPECT_EQ(chain.member(0).news.AwaitDone(1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(chain.member(1).news.AwaitDone(1).code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(TspExchangeTest, APrefixIsForChains) {
  TestChain chain(loaded_, 1, 30);
  PrefillJob job = chain.JobOf(1, 0, 0, {0, 30}, RandomIds(30, 320, 14), {}, false, absl::InfiniteFuture(), GetParam());
  job.bounds[0] = 10;
  EXPECT_EQ(CheckJob(job, 100, 320).message(), "job 1: only a chain has a prefix");
}

// Not even the head attends before it has the KV of all; a frame is taken once the own part is there.
TEST_P(TspExchangeTest, AllKeepStepLayerByLayer) {
  TestChain chain(loaded_, 3, 60, 0, kManual);
  Start(chain, 1, 0, {0, 20, 40, 60});
  const auto has = [&](int member, int64_t layer, TracePoint point) {
    return chain.member(member).trace.Has(1, layer, point);
  };
  for (int i = 0; i < 3; ++i) chain.member(i).trace.Await(1, 0, TracePoint::kQkvEnd);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(has(i, 0, TracePoint::kAttentionBegin));
  while (!chain.member(0).news.done(1) || !chain.member(1).news.done(1) || !chain.member(2).news.done(1)) {
    chain.network().Deliver();
    for (int64_t layer = 0; layer < loaded_.model->config().layers; ++layer) {
      for (int i = 0; i < 3; ++i) {
        if (!has(i, layer, TracePoint::kAttentionBegin)) continue;
        for (int other = 0; other < 3; ++other) EXPECT_TRUE(has(other, layer, TracePoint::kQkvEnd));
      }
    }
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(chain.member(i).news.AwaitDone(1).ok());
    EXPECT_GT(chain.member(i).news.times(1).wait_s, 0);
    EXPECT_LT(chain.member(i).trace.Await(1, 1, TracePoint::kQkvEnd),
              chain.member(i).trace.Await(1, 1, TracePoint::kReceived));
    EXPECT_EQ(has(i, 0, TracePoint::kForwarded), i == 1);
  }
}

// A member that is not started yet (its earlier jobs run) holds up the others, and nothing else.
TEST_P(TspExchangeTest, MembersThatStartLateOrInAnyOrder) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 20);
  const std::vector<int64_t> bounds = {0, 20, 40, 60};
  const ExpectedRun reference = ReferenceRun(loaded_, ids);
  for (const std::vector<int>& order : std::vector<std::vector<int>>{{2, 0, 1}, {1, 2, 0}}) {
    TestChain chain(loaded_, 3, 60, kMinLayerSlots);
    for (int part : order) {
      EXPECT_FALSE(chain.member(0).trace.Has(1, 0, TracePoint::kAttentionBegin));
      chain.member(part).stage->Start(
          chain.JobOf(1, 0, part, bounds, ids, EveryLogprob(loaded_), true, absl::InfiniteFuture(), GetParam()));
    }
    ExpectRun(AwaitWhole(loaded_, chain, 1, 0, bounds), reference);
  }
}

TEST_P(TspExchangeTest, CancelEndsTheJobEverywhereAndTheNextOneRuns) {
  TestChain chain(loaded_, 3, 60, 0, kManual);
  Start(chain, 1, 0, {0, 20, 40, 60});
  for (int i = 0; i < 3; ++i) chain.member(i).trace.Await(1, 0, TracePoint::kQkvEnd);
  for (int i = 0; i < 3; ++i) chain.member(i).stage->Cancel(1, absl::CancelledError("the client went away"));
  Settle(chain, 1, {0, 1, 2});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(chain.member(i).news.AwaitDone(1), absl::CancelledError("the client went away"));
    EXPECT_EQ(chain.member(i).stage->unfinished_jobs(), 0);
  }
  chain.network().DeliverAll();
  EXPECT_EQ(chain.live_edge_jobs(), 0u);
  Start(chain, 2, 0, {0, 20, 40, 60});
  Settle(chain, 2, {0, 1, 2});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(chain.member(i).news.AwaitDone(2).ok());
}

TEST_P(TspExchangeTest, AMemberThatFailsEndsTheJobAtItsNeighbours) {
  TestChain chain(loaded_, 3, 60, 0, kManual);
  Start(chain, 1, 0, {0, 20, 40, 60});
  for (int i = 0; i < 3; ++i) chain.member(i).trace.Await(1, 0, TracePoint::kQkvEnd);
  chain.member(1).stage->Cancel(1, absl::InternalError("out of luck"));
  Settle(chain, 1, {0, 1, 2});
  for (int i : {0, 2}) EXPECT_EQ(chain.member(i).news.AwaitDone(1).code(), absl::StatusCode::kCancelled);
  chain.network().DeliverAll();
  EXPECT_EQ(chain.live_edge_jobs(), 0u);
}

TEST_P(TspExchangeTest, ADeadlinePassedInMidPrefillEndsTheJob) {
  TestChain chain(loaded_, 2, 60, 0, kManual);
  // The tail never starts: the head waits for KV that does not come.
  chain.member(0).stage->Start(chain.JobOf(1, 0, 0, {0, 40, 60}, RandomIds(60, 320, 18), {}, true,
                                           absl::Now() + absl::Milliseconds(50), GetParam()));
  Settle(chain, 1, {0});
  EXPECT_EQ(chain.member(0).news.AwaitDone(1).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(TspExchangeTest, EitherNeighboursDeathFailsTheJobAndLeavesOthersAlone) {
  for (const int dead : {0, 2}) {
    SCOPED_TRACE(dead);
    TestChain chain(loaded_, 4, 60, 0, kManual);
    Start(chain, 1, 0, {0, 20, 40, 60});
    chain.member(1).trace.Await(1, 0, TracePoint::kQkvEnd);
    chain.network().Kill(TestChain::Peer(dead));
    Settle(chain, 1, {1});
    EXPECT_EQ(chain.member(1).news.AwaitDone(1).code(), absl::StatusCode::kUnavailable);
    // As the router does; where the dead worker is no neighbour the job ends by the cancel.
    for (int i = 0; i < 3; ++i) chain.member(i).stage->Cancel(1, absl::CancelledError("a member died"));
    Settle(chain, 1, {0, 1, 2});
    const int first = dead == 0 ? 1 : 0;  // two that live, side by side
    Start(chain, 2, first, {0, 30, 60});
    Settle(chain, 2, {first, first + 1});
    for (int i : {first, first + 1}) EXPECT_TRUE(chain.member(i).news.AwaitDone(2).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, TspExchangeTest, ::testing::Values(Schedule::kTsp, Schedule::kTspCausal),
                         [](const auto& info) { return info.param == Schedule::kTsp ? "Dense" : "Causal"; });

}  // namespace
}  // namespace runahead
