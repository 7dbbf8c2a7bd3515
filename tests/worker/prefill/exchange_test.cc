#include "worker/prefill/exchange.h"

#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "tests/testing/chain_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

// A head of 40 tokens and a tail of 20; frames go when they are told to. One layer: nothing comes ahead of its time.
class ExchangeTest : public ::testing::Test {
 protected:
  void Start() { chain_.Start(1, 0, {0, 40, 60}, RandomIds(60, 320, 23)); }
  void DeliverUntilDone() { EXPECT_TRUE(chain_.DeliverUntilDone(1, {0, 1})); }
  JobTimes Times(int member) { return chain_.member(member).news.times(1); }

  const LoadedModel loaded_ = LoadForTest(WriteSynthetic(SmallModel(1), "exchange"), DType::kF32, 2);
  TestChain chain_{loaded_, 2, 60, 0, LoopbackNetwork::Delivery::kManual};
};

TEST_F(ExchangeTest, WhatThePredecessorComputesIsNoTransferAndWhatComesMeanwhileIsNotHidden) {
  Start();
  chain_.member(1).trace.Await(1, 0, TracePoint::kHandedOff);  // its own KV is there: it waits
  // So long nothing comes, as when the head still computes.
  EXPECT_TRUE(absl::IsDeadlineExceeded(EventSource().event().Wait(absl::Milliseconds(200))));
  const absl::Time released = MonotonicNow();
  DeliverUntilDone();
  const double since_released_s = absl::ToDoubleSeconds(MonotonicNow() - released);
  EXPECT_GT(Times(1).transfer_s, 0);
  EXPECT_LE(Times(1).transfer_s, since_released_s);
  EXPECT_EQ(Times(1).hidden_s, 0);
  EXPECT_GT(Times(1).wait_s, 0.2);
  EXPECT_EQ(Times(0).transfer_s, 0);
  EXPECT_EQ(Times(0).hidden_s, 0);
}

// Its Push returns when the slice's KV is there: the stage looks at what it waits for after that.
class LateHandoff : public HandoffSender {
 public:
  Event Push(const PeerId&, const Slice&, ConstBufferRef, const Event& after) override {
    after.Wait().IgnoreError();
    return after;
  }
  void Cancel(const LeaseId&) override {}
};

TEST_F(ExchangeTest, WhoNeedsNoKvOfOthersWaitsForNoneHoweverLateTheStageLooks) {
  LateHandoff late;
  chain_.handoff().PassTo(late);
  Start();
  DeliverUntilDone();
  EXPECT_EQ(Times(0).wait_s, 0);
}

TEST_F(ExchangeTest, WhatComesWhileTheOwnPartIsComputedIsHidden) {
  KeepingTrace& trace = chain_.member(1).trace;
  trace.HoldAt(TracePoint::kQkvBegin);
  Start();
  trace.Await(1, 0, TracePoint::kQkvBegin);
  EXPECT_TRUE(
      chain_.DeliverUntil("the tail has received layer 0", [&] { return trace.Has(1, 0, TracePoint::kReceived); }));
  trace.Release();
  DeliverUntilDone();
  EXPECT_GT(Times(1).transfer_s, 0);
  EXPECT_EQ(Times(1).hidden_s, Times(1).transfer_s);
}

}  // namespace
}  // namespace runahead
