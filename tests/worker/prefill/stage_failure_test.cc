// Jobs that cannot end well: how they end, who says why, and what goes on beside them.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/prefill/stage_fixture.h"

namespace runahead {
namespace {

class StageFailureTest : public StageTest {};

TEST_F(StageFailureTest, CancelEndsTheJobEverywhereAndTheNextOneRuns) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 17);
  TestChain chain(loaded_, 2, 60, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 40, 60}, ids);
  chain.member(1).trace.Await(1, 0, TracePoint::kQkvEnd);
  for (int i = 0; i < 2; ++i) chain.member(i).stage->Cancel(1, absl::CancelledError("the client went away"));
  EXPECT_TRUE(chain.DeliverUntilDone(1, {0, 1}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(chain.member(i).news.AwaitDone(1), absl::CancelledError("the client went away"));
    EXPECT_EQ(chain.member(i).stage->unfinished_jobs(), 0);
  }
  chain.network().DeliverAll();
  EXPECT_EQ(chain.live_edge_jobs(), 0u);
  chain.Start(2, 0, {0, 40, 60}, ids);
  EXPECT_TRUE(chain.DeliverUntilDone(2, {0, 1}));
  EXPECT_TRUE(chain.member(1).news.AwaitDone(2).ok());
}

TEST_F(StageFailureTest, ADeadlinePassedInMidPrefillEndsTheJob) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 18);
  TestChain chain(loaded_, 2, 60, 0, LoopbackNetwork::Delivery::kManual);
  // The head never starts: the tail waits for KV that does not come.
  chain.member(1).stage->Start(chain.JobOf(1, 0, 1, {0, 40, 60}, ids, {}, true, absl::Now() + absl::Milliseconds(50)));
  EXPECT_EQ(chain.member(1).news.AwaitDone(1).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(StageFailureTest, AJobThatWaitsForMemoryEndsWhenItIsCancelledOrLate) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 24);
  TestChain chain(loaded_, 1, 60);
  ChainMember& worker = chain.member(0);
  chain.handoff().Block();
  for (const JobId job : {1, 2}) {  // their passes end, and they keep both halves
    chain.Start(job, 0, {0, 60}, ids);
    worker.news.AwaitFirstToken(job);
  }
  chain.Start(3, 0, {0, 60}, ids, {}, true, absl::Now() + absl::Milliseconds(50));
  EXPECT_EQ(worker.news.AwaitDone(3).code(), absl::StatusCode::kDeadlineExceeded);
  const auto let_it_wait = [] { EventSource().event().Wait(absl::Milliseconds(50)).IgnoreError(); };
  chain.Start(4, 0, {0, 60}, ids);
  let_it_wait();
  worker.stage->Cancel(4, absl::CancelledError("gone"));
  EXPECT_EQ(worker.news.AwaitDone(4), absl::CancelledError("gone"));
  EXPECT_FALSE(worker.trace.Has(3, 0, TracePoint::kQkvBegin));
  EXPECT_FALSE(worker.news.done(1) || worker.news.done(2));
  chain.Start(5, 0, {0, 60}, ids);
  let_it_wait();
  chain.handoff().Unblock();
  for (const JobId job : {1, 2, 5}) EXPECT_TRUE(worker.news.AwaitDone(job).ok()) << job;
}

TEST_F(StageFailureTest, ADeadNeighbourFailsTheJobAndLeavesOthersAlone) {
  TestChain chain(loaded_, 3, 60, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 40, 60}, RandomIds(60, 320, 19));
  chain.member(1).trace.Await(1, 0, TracePoint::kQkvEnd);
  chain.network().Kill(TestChain::Peer(0));
  EXPECT_EQ(chain.member(1).news.AwaitDone(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(chain.member(0).news.AwaitDone(1).code(), absl::StatusCode::kUnavailable);
  chain.Start(2, 1, {0, 30, 60}, RandomIds(60, 320, 20));
  EXPECT_TRUE(chain.DeliverUntilDone(2, {1, 2}));
  EXPECT_TRUE(chain.member(2).news.AwaitDone(2).ok());
}

// Who reports what of a job that cannot end well: the one it happened on says so, the others that it was not they.
class CauseTest : public StageFailureTest {
 protected:
  static constexpr JobId kJob = 1;

  CauseTest() : chain_(loaded_, 3, 60, 0, LoopbackNetwork::Delivery::kManual) {}
  static std::vector<int32_t> Ids() { return RandomIds(60, 320, 23); }
  void Start() {
    chain_.Start(kJob, 0, {0, 20, 40, 60}, Ids());
    for (int i = 0; i < 3; ++i) chain_.member(i).trace.Await(kJob, 0, TracePoint::kQkvEnd);
  }
  JobEnd EndOf(int member) {
    EXPECT_TRUE(chain_.DeliverUntilDone(kJob, {member}));
    return chain_.member(member).news.AwaitEnd(kJob);
  }
  void ExpectPeers(const std::vector<int>& members) {
    for (const int member : members) EXPECT_EQ(EndOf(member).cause, JobCause::kPeer) << member;
  }

  TestChain chain_;
};

TEST_F(CauseTest, ACancelAndADeadlineAreTheRouters) {
  Start();
  chain_.member(1).stage->Cancel(kJob, absl::CancelledError("gone"));
  EXPECT_EQ(EndOf(1).cause, JobCause::kRouter);
  ExpectPeers({0, 2});
  const JobId late = 2;
  chain_.member(0).stage->Start(chain_.JobOf(late, 0, 0, {0, 60}, Ids(), {}, false, absl::Now() - absl::Seconds(1)));
  EXPECT_EQ(chain_.member(0).news.AwaitEnd(late).cause, JobCause::kRouter);
}

TEST_F(CauseTest, ASliceThatIsRefusedIsTheDecodeWorkers) {
  chain_.handoff().Block();
  Start();
  chain_.handoff().Refuse(absl::NotFoundError("no such lease"));
  // All three were handing off: each says that it was the decode worker, unless a neighbour's drop came first.
  std::vector<JobCause> causes;
  for (int i = 0; i < 3; ++i) causes.push_back(EndOf(i).cause);
  EXPECT_EQ(std::count(causes.begin(), causes.end(), JobCause::kOwn), 0);
  EXPECT_EQ(std::count(causes.begin(), causes.end(), JobCause::kRouter), 0);
  EXPECT_GE(std::count(causes.begin(), causes.end(), JobCause::kDecode), 1);
}

// A decode worker's that comes damaged.
class NoPrefix : public PrefixSource {
 public:
  Event Load(int64_t, int64_t, BufferRef) override {
    EventSource source;
    source.Fire(absl::DataLossError("it came damaged"));
    return source.event();
  }
  void Drop() override {}
};

TEST_F(CauseTest, APrefixThatDoesNotComeIsTheDecodeWorkers) {
  const std::vector<int64_t> bounds = {10, 20, 40, 60};
  for (int i = 2; i >= 0; --i) {
    PrefillJob job = chain_.JobOf(kJob, 0, i, bounds, Ids(), {}, true, absl::InfiniteFuture());
    if (i == 0) job.prefix = std::make_shared<NoPrefix>();
    chain_.member(i).stage->Start(std::move(job));
    if (i > 0) chain_.member(i).trace.Await(kJob, 0, TracePoint::kQkvEnd);
  }
  EXPECT_EQ(EndOf(0).cause, JobCause::kDecode);
  EXPECT_EQ(EndOf(0).status, absl::DataLossError("it came damaged"));
  ExpectPeers({1, 2});
}

TEST_F(CauseTest, ADeadNeighbourIsNotTheWorkersOwn) {
  Start();
  chain_.network().Kill(TestChain::Peer(0));
  ExpectPeers({1, 2});
}

TEST_F(CauseTest, ANeighbourThatWasDeadBeforeIsNotTheWorkersOwn) {
  chain_.network().Kill(TestChain::Peer(2));
  chain_.member(1).stage->Start(chain_.JobOf(kJob, 1, 0, {0, 20, 60}, Ids(), {}, false, absl::InfiniteFuture()));
  ExpectPeers({1});
}

}  // namespace
}  // namespace runahead
