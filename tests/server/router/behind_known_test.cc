// Prompts of whose beginning a decode worker lends KV to a chain, which computes the rest.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/router/behind_known_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using testing::kFirstAnswer;
using testing::kHas;
using testing::kNext;

class BehindKnownTest : public testing::BehindKnownFixture {};

TEST_F(BehindKnownTest, WhatAChainBehindItSavesIsCounted) {
  StartLending();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::Hours(1); });
  ExpectBehind(Generate(FirstTurn()));
  EXPECT_GT(Metric("runahead_known_seconds_saved_total{as=\"predicted\"}"), 0);
  EXPECT_GT(Metric("runahead_known_seconds_saved_total{as=\"measured\"}"), 600);
  EXPECT_EQ(Metric("runahead_known_seconds_lost_total"), 0);
}

TEST_F(BehindKnownTest, AChainComputesWhatIsBehindIt) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn();
  const Got got = Generate(next);
  ExpectBehind(got);
  EXPECT_EQ(got.finished().usage().prompt_tokens(), kNext);
  EXPECT_EQ(got.started().plan().decode_worker(), absl::StrCat("decode-", has_));
  EXPECT_EQ(got.started().plan().known_output_tokens(), kFirstAnswer - 1);
  const v1::ReserveRequest reserved = Has().reserve_requests().back();
  EXPECT_TRUE(reserved.rest_handed());
  EXPECT_EQ(reserved.least_known_tokens(), kHas);
  EXPECT_EQ(reserved.prompt_ids_size(), kNext);
  EXPECT_FALSE(reserved.has_handed_tokens());
  std::vector<v1::StartJob> jobs;
  for (auto& worker : prefill_) jobs.push_back(worker->AwaitStarts(2).back());
  ASSERT_EQ(jobs[0].bounds_size(), 3);
  EXPECT_EQ(jobs[0].bounds(0), kHas);
  EXPECT_EQ(jobs[0].bounds(2), kNext);
  EXPECT_EQ(jobs[0].ids_size(), jobs[0].bounds(1) - kHas) << "its own";
  EXPECT_EQ(jobs[0].ids(0), next.token_ids().ids(kHas));
  EXPECT_EQ(jobs[1].ids_size(), kNext) << "the tail draws by all";
  for (const v1::StartJob& job : jobs) {
    EXPECT_FALSE(job.interleave());
    EXPECT_EQ(job.lease().number(), jobs[0].lease().number());
    EXPECT_EQ(job.x_tokens(), 0);
  }
  const v1::DecodeRequest decoded = Has().decode_requests().back();
  EXPECT_FALSE(decoded.has_output_from()) << "the tail drew the first token";
  EXPECT_EQ(decoded.prompt_ids_size(), kNext);
  EXPECT_EQ(Asked("taken"), 1);
  EXPECT_EQ(Metric("runahead_known_prompt_tokens_total{rest=\"chain\"}"), kHas);
  EXPECT_EQ(Metric("runahead_known_prompt_tokens_total{rest=\"decode\"}"), 0);
  Has().AwaitLeases(0);
}

TEST_F(BehindKnownTest, EachTurnBeginsBehindTheOneBefore) {
  StartLending();
  v1::GenerateRequest next = FirstTurn();
  int has = kHas;
  for (int turn = 0; turn < 3; ++turn) {
    const Got got = Generate(next);
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().known_tokens(), has);
    has = next.token_ids().ids_size() + kFirstAnswer - 1;
    for (const int32_t id : got.ids()) next.mutable_token_ids()->add_ids(id);
    for (int i = 0; i < 20; ++i) next.mutable_token_ids()->add_ids(41 + i);
  }
}

// A chain of one worker takes as long.
TEST_F(BehindKnownTest, AWorkerThatComputesRowsTakesAShortRestItself) {
  StartLending({.prefill = 1, .decode = 2}, /*computes_rows=*/true);
  const Got got = Generate(FirstTurn());
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.started().plan().schedule(), "continuation");
  EXPECT_EQ(got.started().plan().known_tokens(), kHas);
}

TEST_F(BehindKnownTest, WhatIsGoneIsComputedFromTheFirstToken) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.has_kept = false; });
  const Got got = Generate(next);
  ExpectWhole(got);
  EXPECT_EQ(got.started().plan().parts(0) + got.started().plan().parts(1), kNext);
  EXPECT_EQ(Asked("gone"), 1);
  EXPECT_EQ(Asked("taken"), 0);
}

TEST_F(BehindKnownTest, WithoutRoomThereItIsComputedForAnother) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.reserve = false; });
  const Got got = Generate(next);
  ExpectWhole(got);
  EXPECT_EQ(got.started().plan().decode_worker(), absl::StrCat("decode-", 1 - has_));
  EXPECT_EQ(Asked("refused"), 1);
}

// Of a prompt whose chain took an hour, two thirds are known. Behind the first token there are four steps.
TEST_F(BehindKnownTest, WhatStepsLoseWithoutXIsWeighedAgainstWhatItSaves) {
  StartLending();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::Hours(1); });
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.lost_recompute_s = 1; });
  ExpectBehind(Generate(next));
  EXPECT_EQ(Asked("slower"), 0);
  Has().Change([](FakeBehaviour& b) { b.lost_recompute_s = 3600; });
  const Got got = Generate(next);
  ExpectWhole(got);
  EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(got.finished().failovers(), 0);
  EXPECT_EQ(Asked("slower"), 1);
  EXPECT_EQ(Asked("taken"), 1);
  EXPECT_EQ(Asked("refused") + Asked("gone"), 0) << "the router goes on believing in it";
  Has().AwaitLeases(0);
  Other().AwaitLeases(0);
}

// A thousand seconds are less than it saves, and a hundred times as much is more.
TEST_F(BehindKnownTest, EachExpectedStepLosesAsMuch) {
  StartLending();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::Hours(1); });
  v1::GenerateRequest next = FirstTurn(/*max_tokens=*/2);
  Has().Change([](FakeBehaviour& b) { b.lost_recompute_s = 1000; });
  ExpectBehind(Generate(next));
  next.mutable_stop()->set_max_tokens(100);
  ExpectWhole(Generate(next));
  EXPECT_EQ(Asked("slower"), 1);
}

TEST_F(BehindKnownTest, WhereNoTimesAreKnownNothingIsWeighed) {
  StartLending();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::ZeroDuration(); });
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.lost_recompute_s = 3600; });
  ExpectBehind(Generate(next));
  EXPECT_EQ(Metric("runahead_known_seconds_saved_total{as=\"predicted\"}"), 0);
}

// It had a place on a chain for the whole prompt meanwhile.
TEST_F(BehindKnownTest, OnceThereIsRoomItsChainBeginsBehindWhatIsKnown) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn();
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.reserve = false; });
  Call call(*stub_, next, testing::kInVain);
  Has().AwaitReservations(3);  // the first turn; behind what is known; for the whole prompt
  Other().AwaitReservations(1);
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.reserve = true; });
  ExpectBehind(call.Finish());
  Has().AwaitLeases(0);
  Other().AwaitLeases(0);
}

// As a worker would that is older, and computes the rest itself.
TEST_F(BehindKnownTest, ALeaseThatBeginsWithMoreIsNotUsed) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.more_known = 1; });
  ExpectWhole(Generate(next));
  Has().AwaitLeases(0);
}

TEST_F(BehindKnownTest, WhereTheHeadCannotGetItTheNextAttemptComputesAll) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn();
  HoldPrefill(false, false);
  Call call(*stub_, next);
  ASSERT_TRUE(call.Read()->has_started());
  const uint64_t job = prefill_[0]->AwaitStarts(2).back().job();
  prefill_[1]->AwaitStarts(2);
  HoldPrefill(true, true);
  prefill_[0]->SendDone(job, absl::UnavailableError("KV of its beginning did not come"), v1::JOB_CAUSE_DECODE);
  prefill_[1]->SendDone(job, absl::CancelledError("its predecessor dropped it"), v1::JOB_CAUSE_PEER);
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.started().plan().known_tokens(), kHas);
  EXPECT_EQ(got.finished().plan().known_tokens(), 0);
  EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(got.finished().failovers(), 1);
  Has().AwaitLeases(0);
  Other().AwaitLeases(0);
}

TEST_F(BehindKnownTest, ACancelLeavesNoLeaseAndNoJob) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn();
  HoldPrefill(false, false);
  Call call(*stub_, next);
  ASSERT_TRUE(call.Read()->has_started());
  const uint64_t job = prefill_[0]->AwaitStarts(2).back().job();
  call.Cancel();
  EXPECT_TRUE(absl::IsCancelled(call.Finish().status));
  for (auto& worker : prefill_) {
    worker->AwaitStarts(2);
    worker->AwaitCancel(job);
    worker->SendDone(job, absl::CancelledError("as asked"), v1::JOB_CAUSE_ROUTER);
  }
  ExpectAllFreeAndWorking();
}

TEST_F(BehindKnownTest, NeitherWithoutCacheNorForAnExperiment) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn();
  v1::GenerateRequest other = next;
  other.set_no_cache(true);
  ExpectWhole(Generate(other));
  other = next;
  other.mutable_experiment()->set_width(2);
  ExpectWhole(Generate(other));
  EXPECT_EQ(Asked("taken"), 0);
}

TEST_F(BehindKnownTest, OfAModelWithWindowsATurnIsBroughtWhole) {
  StartLending({.decode = 2}, /*computes_rows=*/false, /*window=*/40);
  ExpectBehind(Generate(FirstTurn()));
  EXPECT_EQ(Asked("taken"), 1);
}

TEST_F(BehindKnownTest, WorkersThatLendNothingAreNotAsked) {
  Start({.decode = 2});
  AwaitReady(2, 2);
  ExpectWhole(Generate(FirstTurn()));
}

}  // namespace
}  // namespace runahead
