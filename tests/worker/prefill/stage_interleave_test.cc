// Short prompts while a longer one is half done.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/monotonic.h"
#include "tests/worker/prefill/stage_fixture.h"

namespace runahead {
namespace {

// A long prompt whose tail waits for KV in its first layer until frames are delivered: what is started meanwhile on the
// tail's worker is there before any further layer of the long prompt.
class InterleavedTest : public StageTest {
 protected:
  static constexpr int64_t kHead = 40, kTokens = 300;
  static constexpr int64_t kBudget = (kTokens - kHead) / kTokensPerInterleaved;

  // `slots`: layer buffers of the long prompt; 0: all layers.
  explicit InterleavedTest(int64_t slots = 0) : chain_(loaded_, 2, kTokens, slots, LoopbackNetwork::Delivery::kManual) {
    chain_.Start(1, 0, {0, kHead, kTokens}, Ids(1, kTokens), EveryLogprob(loaded_));
    tail_.trace.Await(1, 0, TracePoint::kQkvEnd);
  }
  static std::vector<int32_t> Ids(JobId job, int64_t tokens) { return RandomIds(tokens, 320, static_cast<int>(job)); }
  void StartShort(JobId job, int64_t tokens, int64_t x_tokens = 0) {
    PrefillJob short_one =
        chain_.JobOf(job, 1, 0, {0, tokens}, Ids(job, tokens), EveryLogprob(loaded_), true, absl::InfiniteFuture());
    short_one.interleave = true;
    short_one.x_tokens = x_tokens;
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
    // The long one's first part is on another member.
    const bool is_long = job == 1;
    const std::vector<int64_t> bounds =
        is_long ? std::vector<int64_t>{0, kHead, kTokens} : std::vector<int64_t>{0, tokens};
    ExpectRun(AwaitWhole(loaded_, chain_, job, is_long ? 0 : 1, bounds), Reference(Ids(job, tokens)));
  }

  const absl::Time began_ = MonotonicNow();
  TestChain chain_;
  ChainMember& tail_ = chain_.member(1);
};

TEST_F(InterleavedTest, AShortPromptIsDoneWhileTheLongerOneWaitsForAFrame) {
  StartShort(2, 10);
  EXPECT_TRUE(tail_.news.AwaitDone(2).ok());
  EXPECT_FALSE(tail_.trace.Has(1, 0, TracePoint::kReceived));
  EXPECT_TRUE(tail_.news.times(2).interleaved);
  StartShort(3, 20);  // the bubble takes as many as the budget does
  EXPECT_TRUE(tail_.news.AwaitDone(3).ok());
  EXPECT_FALSE(tail_.trace.Has(1, 0, TracePoint::kAttentionBegin));
  Finish({1});
  ExpectExact(1, kTokens);
  ExpectExact(2, 10);
  ExpectExact(3, 20);
}

TEST_F(InterleavedTest, WhatFillsTheWaitForAFrameIsNotWaitedFor) {
  tail_.trace.Await(1, 0, TracePoint::kHandedOff);  // its own KV is there: the long one waits
  EXPECT_TRUE(absl::IsDeadlineExceeded(EventSource().event().Wait(absl::Milliseconds(200))));
  tail_.trace.HoldAt(TracePoint::kLayerEnd);  // the short one takes its time
  StartShort(2, 10);
  tail_.trace.Await(2, 0, TracePoint::kLayerEnd);
  EXPECT_TRUE(absl::IsDeadlineExceeded(EventSource().event().Wait(absl::Milliseconds(200))));
  tail_.trace.Release();
  EXPECT_TRUE(tail_.news.AwaitDone(2).ok());
  Finish({1});
  const double elapsed_s = absl::ToDoubleSeconds(MonotonicNow() - began_);
  const JobTimes long_one = tail_.news.times(1), short_one = tail_.news.times(2);
  EXPECT_GT(long_one.wait_s, 0.1);
  EXPECT_GT(long_one.compute_s, 0);
  EXPECT_GT(short_one.compute_s, 0.2);
  EXPECT_LE(long_one.wait_s + short_one.compute_s, elapsed_s);
  EXPECT_LE(long_one.wait_s + long_one.compute_s + short_one.compute_s, elapsed_s);
}

TEST_F(InterleavedTest, AShortPromptRunsBetweenTwoLayersOfALongerOneAndBothAreExact) {
  tail_.trace.HoldAt(TracePoint::kLayerEnd);
  while (!tail_.trace.Has(1, 0, TracePoint::kLayerEnd)) chain_.network().DeliverAll();
  StartShort(2, 10);
  tail_.trace.Release();
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

TEST_F(InterleavedTest, WhatTheLongerOneHasEnqueuedIsNotTheShortOnesComputing) {
  tail_.trace.HoldAt(TracePoint::kLayerEnd);
  while (!tail_.trace.Has(1, 0, TracePoint::kLayerEnd)) chain_.network().DeliverAll();
  StartShort(2, 10);
  EXPECT_TRUE(absl::IsDeadlineExceeded(EventSource().event().Wait(absl::Milliseconds(200))));
  const absl::Time released = MonotonicNow();
  tail_.trace.Release();
  EXPECT_TRUE(tail_.news.AwaitDone(2).ok());
  EXPECT_LE(tail_.news.times(2).compute_s, absl::ToDoubleSeconds(MonotonicNow() - released));
  Finish({1});
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

// 75 tokens have room for KV of all layers, 30 for X beside it.
TEST_F(InterleavedTest, APromptThatHandsOffXNeedsRoomForItToo) {
  StartShort(2, 31, 31);
  StartShort(3, 30, 30);
  Finish({1, 2, 3});
  EXPECT_FALSE(tail_.news.times(2).interleaved);
  EXPECT_TRUE(tail_.news.times(3).interleaved);
  ExpectExact(2, 31);
  ExpectExact(3, 30);
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

TEST_F(InterleavedTest, WhatIsCancelledHalfDoneEndsAndTheLongerOneGoesOn) {
  tail_.trace.HoldAt(TracePoint::kLayerEnd);
  StartShort(2, 10);
  tail_.trace.Await(2, 0, TracePoint::kLayerEnd);
  tail_.stage->Cancel(2, absl::CancelledError("gone"));
  tail_.trace.Release();
  EXPECT_EQ(tail_.news.AwaitDone(2), absl::CancelledError("gone"));
  EXPECT_FALSE(tail_.trace.Has(2, layers(), TracePoint::kFirstToken));
  StartShort(3, 10);
  Finish({1, 3});
  EXPECT_TRUE(tail_.news.times(3).interleaved);
  ExpectExact(1, kTokens);
  ExpectExact(3, 10);
}

TEST_F(InterleavedTest, BothMayBeCancelledHalfDone) {
  tail_.trace.HoldAt(TracePoint::kLayerEnd);
  StartShort(2, 10);
  tail_.trace.Await(2, 0, TracePoint::kLayerEnd);
  for (int i = 0; i < 2; ++i) chain_.member(i).stage->CancelAll(absl::CancelledError("gone"));
  tail_.trace.Release();
  while (!tail_.news.done(1)) chain_.network().DeliverAll();
  for (const JobId job : {1, 2}) EXPECT_EQ(tail_.news.AwaitDone(job), absl::CancelledError("gone")) << job;
  StartShort(3, 10);
  Finish({3});
  EXPECT_FALSE(tail_.news.times(3).interleaved);
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

// With three layer buffers for the long prompt, the longest short ones have three, too.
class FewBuffersTest : public InterleavedTest {
 protected:
  FewBuffersTest() : InterleavedTest(kMinLayerSlots) {}
};

TEST_F(FewBuffersTest, NoLongerPromptWaitsForTheHandOffOfAShortOne) {
  chain_.handoff().Block();
  StartShort(2, kBudget);
  while (!tail_.trace.Has(1, 0, TracePoint::kLayerEnd)) chain_.network().DeliverAll();
  chain_.handoff().Unblock();
  Finish({1, 2});
  ExpectExact(1, kTokens);
  ExpectExact(2, kBudget);
}

}  // namespace
}  // namespace runahead
