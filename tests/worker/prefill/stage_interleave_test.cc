// Short prompts between the layers of a longer one.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/prefill/stage_fixture.h"

namespace runahead {
namespace {

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
    // The long one's first part is on another member.
    const bool is_long = job == 1;
    const std::vector<int64_t> bounds =
        is_long ? std::vector<int64_t>{0, kHead, kTokens} : std::vector<int64_t>{0, tokens};
    ExpectRun(AwaitWhole(loaded_, chain_, job, is_long ? 0 : 1, bounds), Reference(Ids(job, tokens)));
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

}  // namespace
}  // namespace runahead
