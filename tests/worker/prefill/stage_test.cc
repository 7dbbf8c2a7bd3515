#include "worker/prefill/stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/testing/chain_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

class StageTest : public testing::Test {
 protected:
  StageTest() : loaded_(LoadForTest(WriteSynthetic(SmallModel(), "stage"), DType::kF32, 2)) {}

  int64_t row_bytes() const { return loaded_.model->attention_shape().kv_row_bytes(); }
  int64_t layers() const { return loaded_.model->config().layers; }

  // What one worker alone makes of the prompt.
  WholeRun Alone(const std::vector<int32_t>& ids) { return RunAlone(loaded_, ids); }
  WholeRun RunOn(TestChain& chain, JobId job, const std::vector<int64_t>& bounds, const std::vector<int32_t>& ids) {
    return RunWhole(loaded_, chain, job, bounds, ids);
  }

  const LoadedModel loaded_;
};

TEST_F(StageTest, AnyPartitionGivesTheLogitsAndKvOfOneWorker) {
  const std::vector<std::vector<int64_t>> partitions = {
      {0, 1, 2},          {0, 1, 300},        {0, 299, 300},          {0, 150, 300},     {0, 1, 299, 300},
      {0, 100, 200, 300}, {0, 130, 131, 300}, {0, 75, 150, 225, 300}, {0, 1, 2, 3, 300}, {0, 297, 298, 299, 300},
      {0, 1, 2, 3, 4},
  };
  for (const std::vector<int64_t>& bounds : partitions) {
    SCOPED_TRACE(testing::PrintToString(bounds));
    const std::vector<int32_t> ids = RandomIds(bounds.back(), 320, 11);
    TestChain chain(loaded_, static_cast<int>(bounds.size()) - 1, bounds.back());
    ExpectSameRun(RunOn(chain, 1, bounds, ids), Alone(ids));
    EXPECT_EQ(chain.live_edge_jobs(), 0u);
  }
}

TEST_F(StageTest, LongPromptsOnAbsurdPartitions) {
  const std::vector<int32_t> ids = RandomIds(3000, 320, 12);
  const WholeRun alone = Alone(ids);
  for (const std::vector<int64_t>& bounds :
       std::vector<std::vector<int64_t>>{{0, 1, 3000}, {0, 2999, 3000}, {0, 1700, 3000}, {0, 1, 1500, 2999, 3000}}) {
    SCOPED_TRACE(testing::PrintToString(bounds));
    TestChain chain(loaded_, static_cast<int>(bounds.size()) - 1, 3000);
    ExpectSameRun(RunOn(chain, 1, bounds, ids), alone);
  }
}

TEST_F(StageTest, ARingOfThreeBuffersGivesTheSame) {
  const std::vector<int32_t> ids = RandomIds(200, 320, 13);
  TestChain chain(loaded_, 3, 200, kMinLayerSlots);
  ExpectSameRun(RunOn(chain, 1, {0, 90, 150, 200}, ids), Alone(ids));
}

TEST_F(StageTest, OneTokenPrompt) {
  const std::vector<int32_t> ids = {17};
  TestChain chain(loaded_, 1, 1);
  const WholeRun whole = RunOn(chain, 1, {0, 1}, ids);
  SequenceRunner plain(loaded_, 1);
  const std::vector<float> logits = plain.Append(ids, false, false)[0];
  ASSERT_EQ(whole.token.logprobs.size(), logits.size());
  for (const TokenLogprobPair& pair : whole.token.logprobs) {
    const float behind = logits[whole.token.id] - logits[pair.id];
    EXPECT_NEAR(whole.token.logprobs[0].logprob - pair.logprob, behind, 1e-3) << "token " << pair.id;
  }
}

// A prefix whose KV comes from elsewhere than a worker: its bytes are those of an earlier run.
class BytesPrefix : public PrefixSource {
 public:
  explicit BytesPrefix(std::vector<std::string> layers) : layers_(std::move(layers)) {}
  Event Load(int64_t layer, BufferRef into) override {
    std::memcpy(into.data(), layers_[layer].data(), into.size);
    return Event();
  }

 private:
  const std::vector<std::string> layers_;
};

TEST_F(StageTest, APrefixFromElsewhereGivesTheSame) {
  const std::vector<int32_t> ids = RandomIds(160, 320, 14);
  const WholeRun alone = Alone(ids);
  TestChain chain(loaded_, 2, 160);
  const std::vector<int64_t> bounds = {50, 110, 160};
  auto head = chain.JobOf(1, 0, 0, bounds, ids, EveryLogprob(loaded_), false, absl::InfiniteFuture());
  head.prefix = std::make_shared<BytesPrefix>(alone.kv);
  chain.member(0).stage->Start(head);
  chain.member(1).stage->Start(chain.JobOf(1, 0, 1, bounds, ids, EveryLogprob(loaded_), false, absl::InfiniteFuture()));
  WholeRun actual = alone;
  actual.token = chain.member(1).news.AwaitFirstToken(1);
  ExpectSameRun(actual, alone);
}

TEST_F(StageTest, FirstTokenDoesNotWaitForHandOff) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 15);
  TestChain chain(loaded_, 2, 60);
  chain.handoff().Block();
  chain.Start(1, 0, {0, 40, 60}, ids);
  chain.member(1).news.AwaitFirstToken(1);
  EXPECT_FALSE(chain.member(0).news.done(1));
  EXPECT_FALSE(chain.member(1).news.done(1));
  chain.handoff().Unblock();
  EXPECT_TRUE(chain.member(0).news.AwaitDone(1).ok());
  EXPECT_TRUE(chain.member(1).news.AwaitDone(1).ok());
}

TEST_F(StageTest, ReceiveOverlapsQkvAndSendOverlapsAttention) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 16);
  TestChain chain(loaded_, 2, 60, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 40, 60}, ids);
  // Nothing crosses the network yet. The head goes on: attention of layer 0 ends though its send has not.
  chain.member(0).trace.Await(1, 0, TracePoint::kLayerEnd);
  EXPECT_TRUE(chain.member(0).trace.Has(1, 0, TracePoint::kSendPosted));
  EXPECT_FALSE(chain.member(0).trace.Has(1, 0, TracePoint::kSent));
  // The tail's QKV of layer 0 ends though what it receives is not there; attention has not begun.
  const size_t posted = chain.member(1).trace.Await(1, 0, TracePoint::kReceivePosted);
  const size_t projected = chain.member(1).trace.Await(1, 0, TracePoint::kQkvEnd);
  EXPECT_LT(posted, projected);
  EXPECT_FALSE(chain.member(1).trace.Has(1, 0, TracePoint::kReceived));
  EXPECT_FALSE(chain.member(1).trace.Has(1, 0, TracePoint::kAttentionBegin));
  while (!chain.member(0).news.done(1) || !chain.member(1).news.done(1)) chain.network().DeliverAll();
  EXPECT_TRUE(chain.member(1).news.AwaitDone(1).ok());
  EXPECT_TRUE(chain.member(1).trace.Has(1, 0, TracePoint::kReceived));
  EXPECT_TRUE(chain.member(1).trace.Has(1, 0, TracePoint::kAttentionBegin));
}

TEST_F(StageTest, OnlyThoseBehindTheHeadWait) {
  TestChain chain(loaded_, 2, 60, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 40, 60}, RandomIds(60, 320, 22));
  chain.member(1).trace.Await(1, 0, TracePoint::kHandedOff);  // its own KV is there
  while (!chain.member(0).news.done(1) || !chain.member(1).news.done(1)) chain.network().DeliverAll();
  EXPECT_EQ(chain.member(0).news.times(1).wait_s, 0);
  EXPECT_GT(chain.member(1).news.times(1).wait_s, 0);
}

TEST_F(StageTest, OverlappingSegmentsRunBesideEachOther) {
  TestChain chain(loaded_, 4, 120);
  struct Segment {
    JobId job;
    int first;
    std::vector<int64_t> bounds;
  };
  std::vector<Segment> segments;
  for (JobId job = 1; job <= 12; ++job) {
    const int first = static_cast<int>(job % 3);
    const int parts = 1 + static_cast<int>(job % 2);
    std::vector<int64_t> bounds = {0};
    for (int part = 1; part <= parts; ++part) bounds.push_back(120 * part / parts);
    segments.push_back({job, first, bounds});
    chain.Start(job, first, bounds, RandomIds(120, 320, job), EveryLogprob(loaded_));
  }
  for (const Segment& segment : segments) {
    SCOPED_TRACE(segment.job);
    const int parts = static_cast<int>(segment.bounds.size()) - 1;
    WholeRun actual;
    actual.token = chain.member(segment.first + parts - 1).news.AwaitFirstToken(segment.job);
    for (int part = 0; part < parts; ++part) {
      EXPECT_TRUE(chain.member(segment.first + part).news.AwaitDone(segment.job).ok());
    }
    for (int64_t layer = 0; layer < layers(); ++layer) {
      actual.kv.push_back(chain.handoff().Layer(TestChain::Lease(segment.job), layer, 120, row_bytes()));
    }
    ExpectSameRun(actual, Alone(RandomIds(120, 320, segment.job)));
  }
  EXPECT_EQ(chain.live_edge_jobs(), 0u);
}

// A long prompt whose tail waits for KV in its first layer until Finish: what is started meanwhile on the tail's worker
// is queued there before any further layer of the long prompt.
class InterleavedTest : public StageTest {
 protected:
  static constexpr int64_t kHead = 40, kTokens = 300;
  static constexpr int64_t kBudget = (kTokens - kHead) / kTokensPerInterleaved;

  InterleavedTest() : chain_(loaded_, 2, kTokens, 0, LoopbackNetwork::Delivery::kManual) {
    chain_.Start(1, 0, {0, kHead, kTokens}, Ids(1, kTokens), EveryLogprob(loaded_));
    tail_.trace.Await(1, 0, TracePoint::kQkvEnd);
  }
  static std::vector<int32_t> Ids(JobId job, int64_t tokens) { return RandomIds(tokens, 320, static_cast<int>(job)); }
  void StartShort(JobId job, int64_t tokens) {
    PrefillJob short_one =
        chain_.JobOf(job, 1, 0, {0, tokens}, Ids(job, tokens), EveryLogprob(loaded_), true, absl::InfiniteFuture());
    short_one.interleave = true;
    tail_.stage->Start(std::move(short_one));
  }
  void Finish(const std::vector<JobId>& jobs) {
    const auto all = [&] {
      return std::all_of(jobs.begin(), jobs.end(), [&](JobId job) { return tail_.news.done(job); });
    };
    while (!all()) chain_.network().DeliverAll();
    for (const JobId job : jobs) EXPECT_TRUE(tail_.news.AwaitDone(job).ok()) << job;
  }
  void ExpectExact(JobId job, int64_t tokens) {
    WholeRun actual;
    actual.token = tail_.news.AwaitFirstToken(job);
    for (int64_t layer = 0; layer < layers(); ++layer) {
      actual.kv.push_back(chain_.handoff().Layer(TestChain::Lease(job), layer, tokens, row_bytes()));
    }
    ExpectSameRun(actual, Alone(Ids(job, tokens)));
  }

  TestChain chain_;
  ChainMember& tail_ = chain_.member(1);
};

TEST_F(InterleavedTest, AShortPromptRunsBetweenTwoLayersOfALongerOneAndBothAreExact) {
  StartShort(2, 10);
  Finish({1, 2});
  EXPECT_LT(tail_.trace.Await(1, 0, TracePoint::kLayerEnd), tail_.trace.Await(2, layers(), TracePoint::kFirstToken));
  EXPECT_LT(tail_.trace.Await(2, layers(), TracePoint::kFirstToken),
            tail_.trace.Await(1, layers() - 1, TracePoint::kQkvBegin));
  EXPECT_TRUE(tail_.news.times(2).interleaved);
  EXPECT_FALSE(tail_.news.times(1).interleaved);
  // The tail's wait for KV is nobody's computing.
  EXPECT_GT(tail_.news.times(1).wait_s, 0);
  for (const JobId job : {1, 2}) EXPECT_GT(tail_.news.times(job).compute_s, 0) << job;
  ExpectExact(1, kTokens);
  ExpectExact(2, 10);
}

TEST_F(InterleavedTest, TheirShareOfTheLongerPromptsTokensIsBounded) {
  StartShort(2, kBudget + 1);  // too long alone
  StartShort(3, kBudget - kLeastInterleaved);
  StartShort(4, kLeastInterleaved + 1);  // too long beside it
  StartShort(5, 1);                      // counts as the least
  StartShort(6, 1);
  Finish({1, 2, 3, 4, 5, 6});
  std::vector<JobId> interleaved;
  for (JobId job = 1; job <= 6; ++job) {
    if (tail_.news.times(job).interleaved) interleaved.push_back(job);
  }
  EXPECT_EQ(interleaved, (std::vector<JobId>{3, 5}));
}

TEST_F(InterleavedTest, AllOthersKeepTheirOrder) {
  chain_.Start(2, 0, {0, 5, 10}, Ids(2, 10));
  chain_.Start(4, 1, {0, 10}, Ids(4, 10));  // alone, but not to be interleaved
  StartShort(3, 10);
  Finish({1, 2, 3, 4});
  EXPECT_FALSE(tail_.news.times(2).interleaved);
  EXPECT_FALSE(tail_.news.times(4).interleaved);
  EXPECT_TRUE(tail_.news.times(3).interleaved);
  EXPECT_LT(tail_.trace.Await(1, layers() - 1, TracePoint::kQkvBegin), tail_.trace.Await(2, 0, TracePoint::kQkvBegin));
}

TEST_F(InterleavedTest, WaitsWhileNoMemoryIsFree) {
  chain_.handoff().Block();  // what runs between the layers keeps its half of the memory
  StartShort(2, 10);
  StartShort(3, 10);
  while (!tail_.news.done(1) && !tail_.trace.Has(1, layers(), TracePoint::kFirstToken)) chain_.network().DeliverAll();
  chain_.handoff().Unblock();
  Finish({1, 2, 3});
  EXPECT_TRUE(tail_.news.times(2).interleaved);
  EXPECT_FALSE(tail_.news.times(3).interleaved);
}

TEST_F(InterleavedTest, WhatIsCancelledWhileItWaitsEndsAndHoldsNobodyUp) {
  StartShort(2, 10);
  tail_.stage->Cancel(2, absl::CancelledError("gone"));
  StartShort(3, 10);
  Finish({1, 3});
  EXPECT_EQ(tail_.news.AwaitDone(2), absl::CancelledError("gone"));
  ExpectExact(3, 10);
}

TEST_F(InterleavedTest, WhenTheLongerPromptIsCancelledTheShortOneRunsByItself) {
  StartShort(2, 10);
  for (int i = 0; i < 2; ++i) chain_.member(i).stage->Cancel(1, absl::CancelledError("gone"));
  Finish({2});
  EXPECT_EQ(tail_.news.AwaitDone(1), absl::CancelledError("gone"));
  ExpectExact(2, 10);
}

TEST_F(InterleavedTest, ADeadNeighbourOfTheLongerPromptLeavesTheShortOneAlone) {
  StartShort(2, 10);
  chain_.network().Kill(TestChain::Peer(0));
  Finish({2});
  EXPECT_EQ(tail_.news.AwaitDone(1).code(), absl::StatusCode::kUnavailable);
  ExpectExact(2, 10);
}

TEST_F(StageTest, CancelEndsTheJobEverywhereAndTheNextOneRuns) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 17);
  TestChain chain(loaded_, 2, 60, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 40, 60}, ids);
  chain.member(1).trace.Await(1, 0, TracePoint::kQkvEnd);
  for (int i = 0; i < 2; ++i) chain.member(i).stage->Cancel(1, absl::CancelledError("the client went away"));
  while (!chain.member(0).news.done(1) || !chain.member(1).news.done(1)) chain.network().DeliverAll();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(chain.member(i).news.AwaitDone(1), absl::CancelledError("the client went away"));
    EXPECT_EQ(chain.member(i).stage->unfinished_jobs(), 0);
  }
  chain.network().DeliverAll();
  EXPECT_EQ(chain.live_edge_jobs(), 0u);
  chain.Start(2, 0, {0, 40, 60}, ids);
  while (!chain.member(0).news.done(2) || !chain.member(1).news.done(2)) chain.network().DeliverAll();
  EXPECT_TRUE(chain.member(1).news.AwaitDone(2).ok());
}

TEST_F(StageTest, ADeadlinePassedInMidPrefillEndsTheJob) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 18);
  TestChain chain(loaded_, 2, 60, 0, LoopbackNetwork::Delivery::kManual);
  // The head never starts: the tail waits for KV that does not come.
  chain.member(1).stage->Start(chain.JobOf(1, 0, 1, {0, 40, 60}, ids, {}, true, absl::Now() + absl::Milliseconds(50)));
  EXPECT_EQ(chain.member(1).news.AwaitDone(1).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(StageTest, ADeadNeighbourFailsTheJobAndLeavesOthersAlone) {
  TestChain chain(loaded_, 3, 60, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 40, 60}, RandomIds(60, 320, 19));
  chain.member(1).trace.Await(1, 0, TracePoint::kQkvEnd);
  chain.network().Kill(TestChain::Peer(0));
  EXPECT_EQ(chain.member(1).news.AwaitDone(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(chain.member(0).news.AwaitDone(1).code(), absl::StatusCode::kUnavailable);
  chain.Start(2, 1, {0, 30, 60}, RandomIds(60, 320, 20));
  while (!chain.member(1).news.done(2) || !chain.member(2).news.done(2)) chain.network().DeliverAll();
  EXPECT_TRUE(chain.member(2).news.AwaitDone(2).ok());
}

// Who reports what of a job that cannot end well: the one it happened on says so, the others that it was not they.
class CauseTest : public StageTest {
 protected:
  static constexpr JobId kJob = 1;

  CauseTest() : chain_(loaded_, 3, 60, 0, LoopbackNetwork::Delivery::kManual) {}
  static std::vector<int32_t> Ids() { return RandomIds(60, 320, 23); }
  void Start() {
    chain_.Start(kJob, 0, {0, 20, 40, 60}, Ids());
    for (int i = 0; i < 3; ++i) chain_.member(i).trace.Await(kJob, 0, TracePoint::kQkvEnd);
  }
  JobEnd EndOf(int member) {
    while (!chain_.member(member).news.done(kJob)) chain_.network().DeliverAll();
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

// A store of prefixes that has lost one.
class NoPrefix : public PrefixSource {
 public:
  Event Load(int64_t, BufferRef) override {
    EventSource source;
    source.Fire(absl::DataLossError("the disk is gone"));
    return source.event();
  }
};

TEST_F(CauseTest, WhatFailsOnTheWorkerItselfIsItsOwn) {
  const std::vector<int64_t> bounds = {10, 20, 40, 60};
  for (int i = 2; i >= 0; --i) {
    PrefillJob job = chain_.JobOf(kJob, 0, i, bounds, Ids(), {}, true, absl::InfiniteFuture());
    if (i == 0) job.prefix = std::make_shared<NoPrefix>();
    chain_.member(i).stage->Start(std::move(job));
    if (i > 0) chain_.member(i).trace.Await(kJob, 0, TracePoint::kQkvEnd);
  }
  EXPECT_EQ(EndOf(0).cause, JobCause::kOwn);
  EXPECT_EQ(EndOf(0).status, absl::DataLossError("the disk is gone"));
  ExpectPeers({1, 2});
}

TEST_F(CauseTest, ADeadNeighbourIsNotTheWorkersOwn) {
  Start();
  chain_.network().Kill(TestChain::Peer(0));
  ExpectPeers({1, 2});
}

TEST_F(StageTest, RefusesWhatCannotBe) {
  TestChain chain(loaded_, 2, 30, kMinLayerSlots);
  const std::vector<int32_t> ids = RandomIds(400, 320, 21);
  const auto refused = [&](PrefillJob job) {
    const JobId id = job.id;
    chain.member(0).stage->Start(std::move(job));
    return chain.member(0).news.AwaitDone(id).code();
  };
  const auto job = [&](JobId id, const std::vector<int64_t>& bounds) {
    return chain.JobOf(id, 0, 0, bounds, ids, {}, false, absl::InfiniteFuture());
  };
  PrefillJob no_tokens = job(1, {0, 10});
  no_tokens.bounds = {0, 0};
  EXPECT_EQ(refused(no_tokens), absl::StatusCode::kInvalidArgument);
  PrefillJob bad_id = job(2, {0, 10});
  bad_id.ids[3] = 320;
  EXPECT_EQ(refused(bad_id), absl::StatusCode::kInvalidArgument);
  PrefillJob few_ids = job(3, {0, 10});
  few_ids.ids.pop_back();
  EXPECT_EQ(refused(few_ids), absl::StatusCode::kInvalidArgument);
  PrefillJob no_part = job(4, {0, 10});
  no_part.part = 1;
  EXPECT_EQ(refused(no_part), absl::StatusCode::kInvalidArgument);
  PrefillJob lonely = job(5, {0, 10, 20});
  lonely.successor = nullptr;
  EXPECT_EQ(refused(lonely), absl::StatusCode::kInvalidArgument);
  PrefillJob waits = job(7, {0, 10, 20});
  waits.interleave = true;
  EXPECT_EQ(refused(waits), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(job(6, {0, 31})), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(chain.member(0).stage->max_prefix_tokens(), 30);
}

}  // namespace
}  // namespace runahead
