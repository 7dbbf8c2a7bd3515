// Prompts that ask for one token: they begin with what others left, and leave what others begin with.
#include <functional>
#include <memory>
#include <vector>

#include "server/router/decode_lease.h"
#include "tests/server/router/known_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using testing::kAnswer;
using testing::kFirstPrompt;
using testing::kInVain;

class OneTokenTest : public testing::KnownFixture {
 protected:
  v1::GenerateRequest One() { return Ids(kFirstPrompt, 1); }
  Got Ask(const v1::GenerateRequest& request) { return Call(*stub_, request, kInVain).Finish(); }
  void ChangeDecode(const std::function<void(FakeBehaviour&)>& change) {
    for (auto& worker : decode_) worker->Change(change);
  }
  ::testing::AssertionResult LeavesPrompt() const { return MetricBecomes("runahead_known_index_tokens", kFirstPrompt); }
  int Reservations() const {
    size_t asked = 0;
    for (const auto& worker : decode_) asked += worker->reserve_requests().size();
    return static_cast<int>(asked);
  }
};

TEST_F(OneTokenTest, LeavesItsPromptToOthersAndDrawsNothingForThat) {
  StartKeeping({.decode = 1});
  const Got got = Ask(One());
  ExpectChain(got);
  EXPECT_EQ(got.ids(), Whole(1));
  EXPECT_EQ(got.started().plan().decode_worker(), "") << "nothing is decoded";
  ASSERT_TRUE(LeavesPrompt());
  Has().AwaitLeases(0);
  ASSERT_EQ(Has().reserve_requests().size(), 1u);
  EXPECT_EQ(Has().reserve_requests()[0].total_tokens(), kFirstPrompt + 1);
  ASSERT_EQ(Has().decode_requests().size(), 1u);
  EXPECT_EQ(Has().decode_requests()[0].max_tokens(), 1);
  EXPECT_EQ(Has().decode_requests()[0].first_token(), 100);
  for (const int tokens : {1, kAnswer}) {
    const Got next = Ask(Ids(kFirstPrompt, tokens));
    ExpectContinuation(next);
    EXPECT_EQ(next.ids(), Whole(tokens));
    EXPECT_EQ(next.finished().usage().cached_prompt_tokens(), kFirstPrompt - 1);
  }
}

TEST_F(OneTokenTest, AnAnswerThatEndsWithItsFirstTokenLeavesItsPromptToo) {
  StartKeeping({.decode = 1});
  v1::GenerateRequest request = Ids(kFirstPrompt, kAnswer);
  request.mutable_stop()->add_stop_ids(100);
  EXPECT_EQ(Ask(request).ids(), Whole(1));
  ASSERT_TRUE(LeavesPrompt());
  Has().AwaitLeases(0);
  ExpectContinuation(Ask(One()));
}

TEST_F(OneTokenTest, TheAnswerWaitsForNoHandOff) {
  StartKeeping({.decode = 1});
  HoldPrefill(true, false);
  ChangeDecode([](FakeBehaviour& b) { b.decode_until = 0; });
  ExpectChain(Ask(One()));
  Has().AwaitDecodes(1);
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
  ChangeDecode([](FakeBehaviour& b) { b.decode_until = 1; });
  EXPECT_TRUE(LeavesPrompt());
  Has().AwaitLeases(0);
}

TEST_F(OneTokenTest, WhoComesMeanwhileBeginsWithIt) {
  StartKeeping();
  HoldPrefill(false, false);
  Call first(*stub_, One(), kInVain);
  ASSERT_TRUE(first.Read()->has_started());
  Call second(*stub_, One(), kInVain), third(*stub_, Ids(kFirstPrompt, kAnswer), kInVain);
  ASSERT_TRUE(MetricBecomes("runahead_beginnings_awaited_total", 2));
  for (auto& worker : prefill_) worker->LetJobsEnd();
  ExpectChain(first.Finish());
  ExpectContinuation(second.Finish());
  ExpectContinuation(third.Finish());
  EXPECT_EQ(Starts(), 2u) << "of the first, on two workers";
  for (auto& worker : decode_) worker->AwaitLeases(0);
}

TEST_F(OneTokenTest, AnswersToOnePromptBeginWithIt) {
  StartKeeping();
  v1::GenerateRequest request = One();
  request.set_n(3);
  const Got got = Ask(request);
  ASSERT_TRUE(got.status.ok()) << got.status;
  int continued = 0;
  for (const v1::GenerateResponse& response : got.responses) {
    if (response.has_started()) continued += response.started().plan().schedule() == "continuation" ? 1 : 0;
  }
  EXPECT_EQ(continued, 2);
  for (auto& worker : prefill_) EXPECT_EQ(worker->AwaitStarts(1).size(), 1u);
  for (auto& worker : decode_) worker->AwaitLeases(0);
}

// Nor does another one wait for its prompt, which nobody will have.
TEST_F(OneTokenTest, WithoutMemoryItIsAnsweredAndWaitsForNone) {
  StartKeeping();
  HoldPrefill(false, false);
  ChangeDecode([](FakeBehaviour& b) { b.reserve = false; });
  Call first(*stub_, One(), kInVain);
  ASSERT_TRUE(first.Read()->has_started());
  Call second(*stub_, One(), kInVain);
  ASSERT_TRUE(second.Read()->has_started());
  for (auto& worker : prefill_) worker->LetJobsEnd();
  ExpectChain(first.Finish());
  ExpectChain(second.Finish());
  EXPECT_EQ(Metric("runahead_beginnings_awaited_total"), 0);
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
}

TEST_F(OneTokenTest, WithoutASlotNobodyIsAsked) {
  Start({.able = [](v1::Capabilities& able) {
    able.set_keeps_beginnings(true);
    able.set_max_batch(1);
  }});
  AwaitReady(2, 1);
  ChangeDecode([](FakeBehaviour& b) { b.decode_until = 2; });
  v1::GenerateRequest other = Ids(kFirstPrompt, kAnswer);
  other.mutable_token_ids()->set_ids(0, 2);
  Call runs(*stub_, other, kInVain);
  Has().AwaitDecodes(1);
  ExpectChain(Ask(One()));
  EXPECT_EQ(Reservations(), 1);
  ChangeDecode([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  EXPECT_EQ(runs.Finish().ids(), Whole());
}

// Its client's deadline comes before the time that a decode worker has for a Reserve that is needed.
TEST_F(OneTokenTest, AWorkerThatDoesNotAnswerIsNotWaitedForLong) {
  StartKeeping({.decode = 1});
  parts_->keep_patience = absl::Milliseconds(50);
  ChangeDecode([](FakeBehaviour& b) { b.answers_leases = false; });
  ExpectChain(Call(*stub_, One(), kReservePatience - absl::Seconds(1)).Finish());
}

TEST_F(OneTokenTest, WhatIsNotToBeKeptTakesNoLease) {
  StartKeeping();
  v1::GenerateRequest no_cache = One(), experiment = One();
  no_cache.set_no_cache(true);
  experiment.mutable_experiment()->set_width(2);
  for (const v1::GenerateRequest& request : {no_cache, experiment, Ids(32, 1)}) ExpectChain(Ask(request));
  EXPECT_EQ(Reservations(), 0);
}

TEST_F(OneTokenTest, WhereNothingIsKeptItTakesNoLease) {
  StartKeeping({.known_beginnings = false});
  ExpectChain(Ask(One()));
  EXPECT_EQ(Reservations(), 0);
}

TEST_F(OneTokenTest, WorkersThatKeepNoPromptsAreNotAsked) {
  Start({.decode = 2, .able = [](v1::Capabilities& able) {
           able.set_keeps_beginnings(able.name() == "decode-1");
           able.set_window_layers(1);
           able.set_window(40);
         }});
  AwaitReady(2, 2);
  ExpectChain(Ask(One()));
  EXPECT_EQ(Reservations(), 0);
}

TEST_F(OneTokenTest, WhenItsWorkerIsLostItIsComputedAgainWithoutOne) {
  StartKeeping();
  HoldPrefill(false, false);
  Call call(*stub_, One(), kInVain);
  ASSERT_TRUE(call.Read()->has_started());
  const size_t lost = decode_[0]->leases() > 0 ? 0 : 1;
  ASSERT_EQ(decode_[lost]->leases(), 1u);
  for (auto& worker : prefill_) worker->AwaitStarts(1);
  HoldPrefill(true, true);
  decode_[lost].reset();
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Whole(1));
  EXPECT_EQ(got.finished().failovers(), 1);
  EXPECT_EQ(decode_[1 - lost]->reserve_requests().size(), 0u);
}

TEST_F(OneTokenTest, WhenItsWorkerIsLostBehindTheAnswerTheChainStops) {
  StartKeeping({.decode = 1});
  HoldPrefill(true, false);
  ChangeDecode([](FakeBehaviour& b) { b.decode_until = 0; });
  ExpectChain(Ask(One()));
  decode_[0]->AwaitDecodes(1);
  decode_[0].reset();
  for (auto& worker : prefill_) worker->AwaitCancel(worker->AwaitStarts(1).at(0).job());
}

TEST_F(OneTokenTest, ARouterThatEndsWaitsForNoHandOff) {
  StartKeeping({.decode = 1});
  HoldPrefill(true, false);
  ChangeDecode([](FakeBehaviour& b) { b.decode_until = 0; });
  ExpectChain(Ask(One()));
  decode_[0]->AwaitDecodes(1);
  server_.reset();
  service_.reset();
  decode_[0]->AwaitLeases(0);
  for (auto& worker : prefill_) worker->AwaitCancel(worker->AwaitStarts(1).at(0).job());
}

}  // namespace
}  // namespace runahead
