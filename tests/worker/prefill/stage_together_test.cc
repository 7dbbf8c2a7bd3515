// Short prompts that a worker computes in one pass: who goes with whom, what each gets, and how one ends alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/monotonic.h"
#include "scheduler/placement/together.h"
#include "tests/worker/prefill/held_worker.h"
#include "tests/worker/prefill/stage_fixture.h"

namespace runahead {
namespace {

class TogetherTest : public StageTest {
 protected:
  using Passes = std::vector<int64_t>;

  explicit TogetherTest(int64_t max_tokens = 200) : held_(loaded_, max_tokens) {}
  static std::vector<int32_t> Ids(JobId job, int64_t tokens) { return RandomIds(tokens, 320, static_cast<int>(job)); }
  PrefillJob Job(JobId job, int64_t tokens) { return held_.Job(job, Ids(job, tokens), EveryLogprob(loaded_)); }
  void Start(JobId job, int64_t tokens) { held_.Start(Job(job, tokens)); }
  // Jobs from 1 on, with so many tokens.
  void StartAll(const std::vector<int64_t>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) Start(static_cast<JobId>(i + 1), tokens[i]);
  }
  void ExpectExact(JobId job, int64_t tokens) {
    SCOPED_TRACE(job);
    ExpectRun(AwaitWhole(loaded_, held_.chain, job, 0, {0, tokens}), Reference(Ids(job, tokens)));
  }
  // It ends with `why`, without a token, and before its last layer.
  void ExpectEnds(JobId job, const JobEnd& why) {
    const JobEnd end = worker_.news.AwaitEnd(job);
    EXPECT_EQ(end.status, why.status);
    EXPECT_EQ(end.cause, why.cause);
    EXPECT_FALSE(worker_.trace.Has(job, layers() - 1, TracePoint::kQkvBegin));
    EXPECT_FALSE(worker_.trace.Has(job, layers(), TracePoint::kFirstToken));
  }
  void Cancel(JobId job) { worker_.stage->Cancel(job, absl::CancelledError("gone")); }
  const JobEnd gone_{absl::CancelledError("gone"), JobCause::kRouter};

  HeldWorker held_;
  ChainMember& worker_ = held_.worker;
};

TEST_F(TogetherTest, WhatWaitsGoesInOnePassAndEachIsExact) {
  const std::vector<int64_t> tokens = {14, 1, 33, 16, 17};
  StartAll(tokens);
  held_.Release();
  for (size_t i = 0; i < tokens.size(); ++i) ExpectExact(static_cast<JobId>(i + 1), tokens[i]);
  EXPECT_EQ(worker_.passes.all(), (Passes{1, 5}));
  EXPECT_EQ(worker_.stage->unfinished_jobs(), 0);
  EXPECT_EQ(worker_.memory, 0);
}

TEST_F(TogetherTest, APassHasNoMoreRowsThanProductsLike) {
  StartAll({kRowsTogether - 10, 10, 1, kRowsTogether, 1, kRowsTogether + 1, 1, 1});
  held_.Release();
  ExpectExact(2, 10);
  ExpectExact(6, kRowsTogether + 1);
  ExpectExact(8, 1);
  EXPECT_EQ(worker_.passes.all(), (Passes{1, 2, 1, 1, 1, 1, 2}));
}

TEST_F(TogetherTest, TheyShareTheTimeOfThePassByTheirTokens) {
  StartAll({10, 30});
  held_.Release();
  for (const JobId job : {1, 2}) EXPECT_TRUE(worker_.news.AwaitDone(job).ok()) << job;
  EXPECT_GT(worker_.news.times(1).compute_s, 0);
  EXPECT_NEAR(worker_.news.times(2).compute_s / worker_.news.times(1).compute_s, 3, 1e-6);
}

TEST_F(TogetherTest, OneThatIsTracedHasSpansOfItsOwn) {
  PrefillJob traced = Job(2, 20);
  traced.spans = std::make_shared<SpanRecorder>();
  Start(1, 10);
  held_.Start(traced);
  held_.Release();
  EXPECT_TRUE(worker_.news.AwaitDone(2).ok());
  std::map<std::string, int64_t> spans;
  for (const RecordedSpan& span : traced.spans->Take().spans) {
    ++spans[span.name];
    EXPECT_TRUE(span.name != std::string("qkv") || span.amount == 20) << span.amount;
  }
  const std::map<std::string, int64_t> expected = {{"queue", 1},      {"qkv", layers()},     {"attention", layers()},
                                                   {"mlp", layers()}, {"handoff", layers()}, {"sample", 1}};
  EXPECT_EQ(spans, expected);
}

TEST_F(TogetherTest, XGoesOnlyWhereItIsTaken) {
  PrefillJob with_x = Job(2, 20);
  with_x.x_tokens = 15;
  Start(1, 10);
  held_.Start(with_x);
  Start(3, 5);
  held_.Release();
  ExpectExact(1, 10);
  ExpectExact(2, 20);
  ExpectExact(3, 5);
  EXPECT_EQ(worker_.passes.all(), (Passes{1, 3}));
  const auto x_of = [&](TestChain& chain, int64_t layer) {
    return chain.handoff().Layer(TestChain::Lease(2), layer, 0, 15, loaded_.model->config().hidden * sizeof(float),
                                 SliceKind::kX);
  };
  HeldWorker alone(loaded_, 200);
  alone.Start(with_x);
  alone.Release();
  EXPECT_TRUE(alone.worker.news.AwaitDone(2).ok());
  for (int64_t layer = 0; layer < layers(); ++layer) {
    EXPECT_EQ(x_of(held_.chain, layer), x_of(alone.chain, layer)) << layer;
  }
  EXPECT_EQ(held_.chain.handoff().Bytes(SliceKind::kX), alone.chain.handoff().Bytes(SliceKind::kX));
}

// The decode worker of one takes its time: the others have their tokens, and are done.
TEST_F(TogetherTest, NobodyWaitsForTheHandOffOfAnother) {
  class SlowForOne : public HandoffSender {
   public:
    Event Push(const PeerId&, const Slice& slice, ConstBufferRef, const Event& after) override {
      return slice.lease == TestChain::Lease(2) ? WhenAll({after, taken.event()}) : after;
    }
    void Cancel(const LeaseId&) override {}
    EventSource taken;
  } slow;
  held_.chain.handoff().PassTo(slow);
  StartAll({10, 20, 5});
  held_.Release();
  ExpectExact(1, 10);
  ExpectExact(3, 5);
  worker_.news.AwaitFirstToken(2);
  EXPECT_FALSE(worker_.news.done(2));
  EXPECT_GT(worker_.memory, 0) << "what one shares with others is free when all have given it back";
  slow.taken.Fire(absl::OkStatus());
  ExpectExact(2, 20);
  EXPECT_EQ(worker_.memory, 0);
}

TEST_F(TogetherTest, OneThatIsCancelledBetweenTwoLayersEndsAlone) {
  StartAll({10, 20, 30});
  held_.ReleaseUpTo(1);
  Cancel(2);
  held_.Release();
  ExpectEnds(2, gone_);
  ExpectExact(1, 10);
  ExpectExact(3, 30);
  EXPECT_EQ(worker_.passes.all(), (Passes{1, 3}));
}

// The first one opened the pass.
TEST_F(TogetherTest, TheFirstMayLeaveToo) {
  StartAll({10, 20, 30});
  held_.ReleaseUpTo(1);
  Cancel(1);
  held_.Release();
  ExpectEnds(1, gone_);
  ExpectExact(2, 20);
  ExpectExact(3, 30);
}

TEST_F(TogetherTest, WhenAllAreCancelledThePassStops) {
  StartAll({10, 20, 30});
  held_.ReleaseUpTo(1);
  for (const JobId job : {1, 2, 3}) Cancel(job);
  held_.Release();
  for (const JobId job : {1, 2, 3}) ExpectEnds(job, gone_);
  Start(4, 10);
  ExpectExact(4, 10);
  EXPECT_EQ(worker_.memory, 0);
}

TEST_F(TogetherTest, WhatIsCancelledBeforeThePassBeginsIsNotComputed) {
  StartAll({10, 20, 30});
  Cancel(1);
  Cancel(3);
  held_.Release();
  ExpectEnds(1, gone_);
  ExpectEnds(3, gone_);
  ExpectExact(2, 20);
  EXPECT_FALSE(worker_.trace.Has(1, 0, TracePoint::kQkvBegin) || worker_.trace.Has(3, 0, TracePoint::kQkvBegin));
  EXPECT_EQ(worker_.passes.all(), (Passes{1, 1}));
}

TEST_F(TogetherTest, OneThatIsLateEndsAlone) {
  PrefillJob late = Job(2, 20);
  const absl::Duration left = absl::Milliseconds(50);
  late.deadline = MonotonicNow() + left;
  Start(1, 10);
  held_.Start(std::move(late));
  held_.ReleaseUpTo(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(EventSource().event().Wait(left)));  // its time passes meanwhile
  held_.Release();
  EXPECT_EQ(worker_.news.AwaitEnd(2).status.code(), absl::StatusCode::kDeadlineExceeded);
  ExpectExact(1, 10);
}

// As where its lease has expired: the decode worker takes none of its slices.
TEST_F(TogetherTest, OneWhoseSlicesAreRefusedEndsAlone) {
  class RefusingOne : public HandoffSender {
   public:
    Event Push(const PeerId&, const Slice& slice, ConstBufferRef, const Event& after) override {
      if (slice.lease != TestChain::Lease(2)) return after;
      EventSource refused;
      after.OnFire([refused](const absl::Status&) { refused.Fire(absl::NotFoundError("no such lease")); });
      return refused.event();
    }
    void Cancel(const LeaseId&) override {}
  } refusing;
  held_.chain.handoff().PassTo(refusing);
  StartAll({10, 20, 30});
  held_.ReleaseUpTo(1);
  held_.Release();
  ExpectEnds(2, {absl::NotFoundError("no such lease"), JobCause::kDecode});
  ExpectExact(1, 10);
  ExpectExact(3, 30);
}

// Ordered jobs never overtake each other: a part of a chain is between two short prompts.
class TogetherOnALineTest : public StageTest {};

TEST_F(TogetherOnALineTest, APartOfAChainIsNotOvertaken) {
  HeldWorker held(loaded_, 64, /*width=*/2);
  const std::vector<int32_t> ids = RandomIds(20, 320, 1);
  held.Start(held.Job(1, ids, EveryLogprob(loaded_)));
  held.Start(held.Job(2, ids, EveryLogprob(loaded_)));
  held.chain.Start(3, 0, {0, 5, 20}, ids, EveryLogprob(loaded_));
  held.Start(held.Job(4, ids, EveryLogprob(loaded_)));
  held.Release();
  for (const JobId job : {1, 2, 4}) ExpectRun(AwaitWhole(loaded_, held.chain, job, 1, {0, 20}), Reference(ids));
  ExpectRun(AwaitWhole(loaded_, held.chain, 3, 0, {0, 5, 20}), Reference(ids));
  EXPECT_EQ(held.worker.passes.all(), (std::vector<int64_t>{1, 2, 1, 1}));
}

// Memory that has room for 64 rows of all layers.
class TogetherInLittleMemoryTest : public TogetherTest {
 protected:
  TogetherInLittleMemoryTest() : TogetherTest(64) {}
};

TEST_F(TogetherInLittleMemoryTest, AsManyGoAsItHoldsWithAllTheirLayers) {
  StartAll({30, 30, 1, 30, 17, 16});  // rows by sixteens
  held_.Release();
  for (const JobId job : {1, 2, 4}) ExpectExact(job, 30);
  ExpectExact(6, 16);
  EXPECT_EQ(worker_.passes.all(), (Passes{1, 2, 2, 2}));
}

}  // namespace
}  // namespace runahead
