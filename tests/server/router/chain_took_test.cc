// What prompts took lately on chains says who computes the next ones whose beginning is known.
#include "tests/server/router/known_fixture.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::FakeBehaviour;
using testing::FakeClock;
using testing::Got;

constexpr int kTurn = 2 * testing::kKnownOfNext;

// By a clock that stands still, so that nothing is forgotten.
class ChainTookTest : public testing::KnownFixture {
 protected:
  // A decode worker that computes rests itself, or one that lends to chains.
  void StartOne(bool computes) {
    testing::RouterSetup setup{.prefill = 1, .decode = 1, .stall_timeout = absl::Hours(24), .clock = &clock_};
    setup.able = [computes](v1::Capabilities& able) {
      able.set_keeps_beginnings(computes);
      able.set_lends_beginnings(!computes);
    };
    Start(setup);
    AwaitReady(setup.prefill, setup.decode);
    ChainsTake(absl::Seconds(1));
    turn_ = FirstTurn();
    ChainsTake(absl::Seconds(2));
    EXPECT_EQ(ComputeWhole(20).started().plan().known_tokens(), 0);
  }
  void ChainsTake(absl::Duration took) {
    prefill_[0]->Change([took](FakeBehaviour& b) { b.prefill_takes = took; });
  }
  // Half of it is known. `id` is one that no other had.
  Got AskHalfKnown(int32_t id) {
    v1::GenerateRequest request = turn_;
    while (request.token_ids().ids_size() < kTurn) request.mutable_token_ids()->add_ids(id);
    request.mutable_token_ids()->set_ids(testing::kKnownOfNext + 1, id);
    return Generate(request);
  }
  Got ComputeWhole(int32_t id) {
    v1::GenerateRequest request = Ids(kTurn, testing::kAnswer);
    for (int i = 0; i < kTurn; ++i) request.mutable_token_ids()->set_ids(i, id);
    return Generate(request);
  }

  FakeClock clock_;
  v1::GenerateRequest turn_;
};

// Prompts take four times as long as before, and rests as well. It is not for bringing.
TEST_F(ChainTookTest, WhatMakesAllChainsSlowIsNotCountedForBringing) {
  StartOne(/*computes=*/false);
  for (int32_t i = 0; i < 6; ++i) {
    ChainsTake(absl::Seconds(8));
    ComputeWhole(30 + i);
    ChainsTake(absl::Seconds(4));
    const Got got = AskHalfKnown(50 + i);
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_GE(got.started().plan().known_tokens(), testing::kKnownOfNext) << i;
  }
}

// Half of the prompt is left, and the worker is expected to be as slow as chains are.
TEST_F(ChainTookTest, ARestOnTheWorkerAndAllOnAChainTakeAsLongAsPromptsDoLately) {
  StartOne(/*computes=*/true);
  ChainsTake(absl::Seconds(16));
  for (int32_t i = 0; i < 6; ++i) ComputeWhole(30 + i);
  const double before = Metric("runahead_known_seconds_saved_total{as=\"predicted\"}");
  ExpectContinuation(AskHalfKnown(60));
  const double saved = Metric("runahead_known_seconds_saved_total{as=\"predicted\"}") - before;
  EXPECT_GT(saved, 4) << "half of about sixteen";
  EXPECT_LT(saved, 12);
}

}  // namespace
}  // namespace runahead
