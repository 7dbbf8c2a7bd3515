// Prompts that begin alike, and come while one of them is computed: the others wait for it, where that pays.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/router/known_fixture.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using testing::kAnswer;
using testing::kFirstPrompt;
using testing::kInVain;

class AlikeTest : public testing::KnownFixture {
 protected:
  void StartHolding() {
    StartKeeping();
    HoldPrefill(false, false);
  }
  void LetGoOn() {
    for (auto& worker : prefill_) worker->LetJobsEnd();
  }
  ::testing::AssertionResult WaitsFor(int requests) const {
    return MetricBecomes("runahead_beginnings_awaited_total", requests);
  }
};

TEST_F(AlikeTest, OfEqualPromptsAtOnceOneIsComputed) {
  StartHolding();
  Call first(*stub_, Ids(kFirstPrompt, kAnswer));
  ASSERT_TRUE(first.Read()->has_started());
  std::vector<std::unique_ptr<Call>> others;
  for (int i = 0; i < 4; ++i) others.push_back(std::make_unique<Call>(*stub_, Ids(kFirstPrompt, kAnswer)));
  ASSERT_TRUE(WaitsFor(4));
  LetGoOn();
  EXPECT_EQ(first.Finish().ids(), Whole());
  for (auto& other : others) {
    const Got got = other->Finish();
    ExpectContinuation(got);
    EXPECT_EQ(got.started().plan().known_tokens(), kFirstPrompt - 1);
    EXPECT_EQ(got.ids(), Whole());
  }
  EXPECT_EQ(Starts(), 2u) << "of the first, on two workers";
  Has().AwaitLeases(0);
  Other().AwaitLeases(0);
}

TEST_F(AlikeTest, OneThatIsCancelledLeavesItToTheNext) {
  StartHolding();
  Call first(*stub_, Ids(kFirstPrompt, kAnswer));
  ASSERT_TRUE(first.Read()->has_started());
  Call second(*stub_, Ids(kFirstPrompt, kAnswer)), third(*stub_, Ids(kFirstPrompt, kAnswer));
  ASSERT_TRUE(WaitsFor(2));
  first.Cancel();
  EXPECT_TRUE(absl::IsCancelled(first.Finish().status));
  ASSERT_TRUE(WaitsFor(3)) << "the second or the third computes it, and the other waits for that";
  LetGoOn();
  const Got of_second = second.Finish(), of_third = third.Finish();
  EXPECT_EQ(of_second.ids(), Whole());
  EXPECT_EQ(of_third.ids(), Whole());
  std::vector<std::string> schedules = {of_second.started().plan().schedule(), of_third.started().plan().schedule()};
  std::sort(schedules.begin(), schedules.end());
  EXPECT_EQ(schedules, (std::vector<std::string>{"continuation", "kvr"}));
}

TEST_F(AlikeTest, WhoWaitsEndsWithItsClientAndItsDeadlineAndHoldsNothing) {
  StartHolding();
  Call first(*stub_, Ids(kFirstPrompt, kAnswer));
  ASSERT_TRUE(first.Read()->has_started());
  Call second(*stub_, Ids(kFirstPrompt, kAnswer));
  ASSERT_TRUE(WaitsFor(1));
  second.Cancel();
  EXPECT_TRUE(absl::IsCancelled(second.Finish().status));
  Call late(*stub_, Ids(kFirstPrompt, kAnswer), absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Finish().status));
  LetGoOn();
  EXPECT_EQ(first.Finish().ids(), Whole());
  ExpectAllFreeAndWorking();
}

TEST_F(AlikeTest, WhatLeavesNoPromptIsNotWaitedFor) {
  StartHolding();
  v1::GenerateRequest not_kept = Ids(kFirstPrompt, kAnswer);
  not_kept.set_no_cache(true);
  Call first(*stub_, not_kept);
  ASSERT_TRUE(first.Read()->has_started());
  Call second(*stub_, not_kept);
  ASSERT_TRUE(second.Read()->has_started());
  Call third(*stub_, Ids(kFirstPrompt, kAnswer));
  LetGoOn();
  for (Call* call : {&first, &second, &third}) ExpectChain(call->Finish());
  EXPECT_EQ(Metric("runahead_beginnings_awaited_total"), 0);
}

// It gives its place on the chain back until it has memory: nobody computes it meanwhile, and it does not wait for
// itself.
TEST_F(AlikeTest, APromptThatWaitsForMemoryIsNotOneThatIsComputed) {
  StartKeeping();
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.reserve = false; });
  Call call(*stub_, Ids(kFirstPrompt, kAnswer), kInVain);
  decode_[0]->AwaitReservations(2);  // it came back
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.reserve = true; });
  ExpectChain(call.Finish());
  EXPECT_EQ(Metric("runahead_beginnings_awaited_total"), 0);
}

// Its client has waited for one attempt already.
TEST_F(AlikeTest, WhatHasFailedOnceWaitsForNobodysPrompt) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.decode_until = -1; });
  Call fails(*stub_, next, kInVain);
  ASSERT_TRUE(fails.Read()->has_started());
  Has().AwaitDecodes(2);
  HoldPrefill(false, false);
  Has().Change([](FakeBehaviour& b) { b.reserve = false; });  // so that a chain computes the next one
  Call alike(*stub_, next, kInVain);
  ASSERT_EQ(alike.Read()->started().plan().schedule(), "kvr");
  Has().Change(
      [](FakeBehaviour& b) { b.generate_end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "it is about to stop"); });
  LetGoOn();
  EXPECT_EQ(fails.Finish().finished().plan().schedule(), "kvr");
  ExpectChain(alike.Finish());
  EXPECT_EQ(Metric("runahead_beginnings_awaited_total"), 0);
}

class AlikePatienceTest : public AlikeTest {
 protected:
  testing::FakeClock clock_;
};

TEST_F(AlikePatienceTest, WhoHasWaitedLongEnoughIsComputedByItself) {
  StartKeeping({.decode = 2, .stall_timeout = absl::Hours(24), .clock = &clock_});
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::Seconds(10); });
  v1::GenerateRequest other = Ids(kFirstPrompt, kAnswer);
  other.mutable_token_ids()->set_ids(0, 2);
  ExpectChain(Generate(other));  // so that it is known what such prompts take
  HoldPrefill(false, false);
  Call late(*stub_, Ids(kFirstPrompt, kAnswer));
  ASSERT_TRUE(late.Read()->has_started());
  Call waits(*stub_, Ids(kFirstPrompt, kAnswer));
  ASSERT_TRUE(WaitsFor(1));
  clock_.AwaitWaiters(2);
  clock_.Advance(absl::Hours(1));
  ASSERT_TRUE(waits.Read()->has_started()) << "while the other one is computed still";
  LetGoOn();
  ExpectChain(late.Finish());
  ExpectChain(waits.Finish());
  EXPECT_EQ(Metric("runahead_beginnings_awaited_total"), 1);
}

}  // namespace
}  // namespace runahead
