// Short prompts while a longer one is half done.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/monotonic.h"
#include "tests/testing/await.h"
#include "tests/worker/prefill/stage_fixture.h"

namespace runahead {
namespace {

// A long prompt whose tail waits for KV in its first layer until frames are delivered: what is started meanwhile on the
// tail's worker is there before any further layer of the long prompt.
class InterleavedTest : public StageTest {
 protected:
  using Passes = std::vector<int64_t>;

  static constexpr int64_t kHead = 40, kTokens = 300;
  // As its tail is expected to take a second a token.
  static constexpr int64_t kBudget = (kTokens - kHead) / kOvertakenShare;

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
  void HoldBetweenLayers() {
    tail_.trace.HoldAt(TracePoint::kLayerEnd);
    EXPECT_TRUE(chain_.DeliverUntil("the long prompt is at the end of layer 0",
                                    [&] { return tail_.trace.Has(1, 0, TracePoint::kLayerEnd); }));
  }
  // What is started until Release is there at once, when this one is done.
  void HoldAShortOne(JobId job) {
    tail_.trace.HoldAt(TracePoint::kLayerEnd);
    StartShort(job, 5);
    tail_.trace.Await(job, 0, TracePoint::kLayerEnd);
  }
  void Finish(const std::vector<JobId>& jobs) {
    const auto all = [&] {
      return std::all_of(jobs.begin(), jobs.end(), [&](JobId job) { return tail_.news.done(job); });
    };
    EXPECT_TRUE(chain_.DeliverUntil("all jobs are done", all));
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
  HoldBetweenLayers();
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
  HoldBetweenLayers();
  StartShort(2, 10);
  EXPECT_TRUE(absl::IsDeadlineExceeded(EventSource().event().Wait(absl::Milliseconds(200))));
  const absl::Time released = MonotonicNow();
  tail_.trace.Release();
  EXPECT_TRUE(tail_.news.AwaitDone(2).ok());
  EXPECT_LE(tail_.news.times(2).compute_s, absl::ToDoubleSeconds(MonotonicNow() - released));
  Finish({1});
}

TEST_F(InterleavedTest, TheirShareOfTheLongerPromptsTimeIsBounded) {
  StartShort(2, kBudget - 30);
  StartShort(3, 31);  // too long beside it
  StartShort(4, 7);   // also the one before it bears that
  EXPECT_TRUE(tail_.news.AwaitDone(4).ok());
  StartShort(5, 1);  // of a quarter of 31 three quarters of a token are left
  Finish({1, 2, 3, 4, 5});
  std::vector<JobId> interleaved;
  for (JobId job = 1; job <= 5; ++job) {
    if (tail_.news.times(job).interleaved) interleaved.push_back(job);
  }
  EXPECT_EQ(interleaved, (std::vector<JobId>{2, 4}));
}

TEST_F(InterleavedTest, TheShortestGoesFirstWhereTheOthersBearIt) {
  tail_.trace.HoldAt(TracePoint::kLayerEnd);
  StartShort(2, 12);  // is begun, and holds the others up
  tail_.trace.Await(2, 0, TracePoint::kLayerEnd);
  StartShort(3, 40);  // bears 10
  StartShort(4, 11);
  StartShort(5, 9);
  StartShort(6, 2);  // 4 bears it, and so does 3
  tail_.trace.Release();
  Finish({1, 2, 3, 4, 5, 6});
  const auto begins = [&](JobId job) { return tail_.trace.Await(job, 0, TracePoint::kQkvBegin); };
  EXPECT_LT(begins(6), begins(3));
  EXPECT_LT(begins(3), begins(4)) << "3 does not bear 11, nor what is left of 10 after 2 bears 9";
  EXPECT_LT(begins(4), begins(5)) << "4 bears 2.75";
  ExpectExact(6, 2);
  ExpectExact(3, 40);
}

// What the computed one does not bear is next when that one is over, before what bears it.
TEST_F(InterleavedTest, APromptThatIsNotInterleavedOvertakesWhatHasNotBegun) {
  StartShort(2, kBudget - 10);
  EXPECT_TRUE(tail_.news.AwaitDone(2).ok());
  chain_.Start(3, 0, {0, kHead, kTokens}, Ids(3, kTokens));
  StartShort(4, 20);
  StartShort(5, kBudget - 10);  // not borne beside the other
  Finish({1, 3, 4, 5});
  EXPECT_FALSE(tail_.news.times(4).interleaved);
  EXPECT_FALSE(tail_.news.times(5).interleaved);
  const auto begins = [&](JobId job) { return tail_.trace.Await(job, 0, TracePoint::kQkvBegin); };
  EXPECT_LT(begins(4), begins(3));
  EXPECT_LT(begins(3), begins(5));
  ExpectExact(4, 20);
}

TEST_F(InterleavedTest, WhatFindsNoMemoryBesideTheLongerOneOvertakesWhatHasNotBegun) {
  chain_.Start(2, 0, {0, kHead, kTokens}, Ids(2, kTokens));
  StartShort(3, 40, 40);  // KV would find room, but not X with it
  Finish({1, 2, 3});
  EXPECT_FALSE(tail_.news.times(3).interleaved);
  EXPECT_LT(tail_.trace.Await(3, 0, TracePoint::kQkvBegin), tail_.trace.Await(2, 0, TracePoint::kQkvBegin));
  ExpectExact(3, 40);
}

// 75 tokens have room for KV of all layers, 30 for X beside it.
TEST_F(InterleavedTest, APromptThatHandsOffXNeedsRoomForItToo) {
  StartShort(2, 30, 30);
  StartShort(3, 31, 31);
  Finish({1, 2, 3});
  EXPECT_TRUE(tail_.news.times(2).interleaved);
  EXPECT_FALSE(tail_.news.times(3).interleaved);
  ExpectExact(2, 30);
  ExpectExact(3, 31);
}

TEST_F(InterleavedTest, AllOthersKeepTheirOrder) {
  chain_.Start(2, 0, {0, 5, 10}, Ids(2, 10));
  chain_.Start(4, 1, {0, 10}, Ids(4, 10));  // alone, but not to overtake
  StartShort(3, 1);
  Finish({1, 2, 3, 4});
  EXPECT_FALSE(tail_.news.times(2).interleaved);
  EXPECT_FALSE(tail_.news.times(4).interleaved);
  EXPECT_TRUE(tail_.news.times(3).interleaved);
  EXPECT_LT(tail_.trace.Await(1, layers() - 1, TracePoint::kQkvBegin), tail_.trace.Await(2, 0, TracePoint::kQkvBegin));
}

TEST_F(InterleavedTest, WaitsWhileNoMemoryIsFree) {
  chain_.handoff().Block();  // what runs between the layers keeps its memory
  StartShort(2, 10);
  StartShort(3, 28, 28);  // alone it would find room, but not beside 10 tokens
  EXPECT_TRUE(chain_.DeliverUntil("the long prompt is at its first token",
                                  [&] { return tail_.trace.Has(1, layers(), TracePoint::kFirstToken); }));
  chain_.handoff().Unblock();
  Finish({1, 2, 3});
  EXPECT_TRUE(tail_.news.times(2).interleaved);
  EXPECT_FALSE(tail_.news.times(3).interleaved);
  EXPECT_EQ(tail_.passes.all(), (Passes{1, 1, 1}));
  ExpectExact(3, 28);
}

TEST_F(InterleavedTest, WhatDoesNotFitWithTheOthersGoesBehindThem) {
  HoldAShortOne(4);
  StartShort(2, 10);
  StartShort(3, 28, 28);
  tail_.trace.Release();
  Finish({1, 2, 3, 4});
  EXPECT_TRUE(tail_.news.times(2).interleaved);
  EXPECT_EQ(tail_.passes.all(), (Passes{1, 1, 1, 1}));
  ExpectExact(3, 28);
}

TEST_F(InterleavedTest, ThoseThatFitGoAlongInOnePass) {
  HoldAShortOne(4);
  StartShort(2, 10);
  StartShort(3, 12);
  tail_.trace.Release();
  Finish({1, 2, 3, 4});
  for (const JobId job : {2, 3}) EXPECT_TRUE(tail_.news.times(job).interleaved) << job;
  EXPECT_EQ(tail_.passes.all(), (Passes{1, 1, 2}));
  ExpectExact(1, kTokens);
  ExpectExact(2, 10);
  ExpectExact(3, 12);
}

TEST_F(InterleavedTest, OneOfThemThatIsCancelledHalfDoneLeavesTheOtherWhole) {
  HoldAShortOne(4);
  StartShort(2, 10);
  StartShort(3, 12);
  tail_.trace.HoldAt(TracePoint::kLayerEnd, 2);
  tail_.trace.Await(2, 0, TracePoint::kLayerEnd);
  tail_.stage->Cancel(2, absl::CancelledError("gone"));
  tail_.trace.Release();
  Finish({1, 3, 4});
  EXPECT_EQ(tail_.news.AwaitDone(2), absl::CancelledError("gone"));
  EXPECT_FALSE(tail_.trace.Has(2, layers(), TracePoint::kFirstToken));
  EXPECT_TRUE(tail_.news.times(3).interleaved);
  EXPECT_EQ(tail_.passes.all(), (Passes{1, 1, 2}));
  ExpectExact(1, kTokens);
  ExpectExact(3, 12);
}

// Two long prompts still hand off, and have both halves. A third one waits for one of them, and the short one does not.
TEST_F(InterleavedTest, AShortPromptDoesNotWaitForTheMemoryOfALongOne) {
  chain_.handoff().Block();
  chain_.Start(2, 1, {0, kTokens}, Ids(2, kTokens));
  tail_.trace.HoldAt(TracePoint::kFirstToken, 2);
  EXPECT_TRUE(chain_.DeliverUntil("the long prompt is at its first token",
                                  [&] { return tail_.trace.Has(2, layers(), TracePoint::kFirstToken); }));
  chain_.Start(3, 1, {0, kTokens}, Ids(3, kTokens));
  StartShort(4, 10);
  tail_.trace.Release();
  EXPECT_TRUE(testing::Await("the short prompt has its first token",
                             [&] { return tail_.trace.Has(4, layers(), TracePoint::kFirstToken); }));
  chain_.handoff().Unblock();
  Finish({1, 2, 3, 4});
  EXPECT_TRUE(tail_.news.times(4).interleaved);
  ExpectExact(4, 10);
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
  EXPECT_TRUE(chain_.DeliverUntil("the long prompt is done", [&] { return tail_.news.done(1); }));
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
  EXPECT_TRUE(chain_.DeliverUntil("the long prompt is at the end of layer 0",
                                  [&] { return tail_.trace.Has(1, 0, TracePoint::kLayerEnd); }));
  chain_.handoff().Unblock();
  Finish({1, 2});
  ExpectExact(1, kTokens);
  ExpectExact(2, kBudget);
}

}  // namespace
}  // namespace runahead
