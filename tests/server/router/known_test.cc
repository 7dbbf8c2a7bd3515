// Prompts whose beginning a decode worker may have KV of: it computes the rest, and no chain does.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/api_key.h"
#include "server/base/text_file.h"
#include "tests/server/router/known_by_key_fixture.h"
#include "tests/server/router/known_fixture.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using testing::kAlicesKey;
using testing::kAnswer;
using testing::kBobsKey;
using testing::kFirstPrompt;
using testing::kInVain;
using testing::kKnownOfNext;
using testing::kMore;

using KnownTest = testing::KnownFixture;

TEST_F(KnownTest, TheNextTurnGoesToTheWorkerThatHasItAndToNoChain) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  const size_t starts = Starts();
  const Got got = Generate(next);
  ExpectContinuation(got);
  EXPECT_EQ(got.ids(), Whole());
  EXPECT_EQ(Starts(), starts);
  const v1::Plan& plan = got.started().plan();
  EXPECT_EQ(plan.workers_size(), 0);
  EXPECT_EQ(plan.parts_size(), 0);
  EXPECT_EQ(plan.decode_worker(), absl::StrCat("decode-", has_));
  EXPECT_EQ(plan.known_tokens(), kKnownOfNext);
  EXPECT_EQ(plan.known_output_tokens(), kAnswer - 1);
  EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), kKnownOfNext);
  EXPECT_EQ(got.finished().usage().prompt_tokens(), kFirstPrompt + kAnswer + kMore);
  const v1::ReserveRequest reserved = Has().reserve_requests().back();
  EXPECT_GE(reserved.least_known_tokens(), 32);
  EXPECT_LE(reserved.least_known_tokens(), kKnownOfNext);
  EXPECT_EQ(reserved.prompt_ids_size(), kFirstPrompt + kAnswer + kMore);
  EXPECT_EQ(reserved.salt(), "");
  EXPECT_FALSE(reserved.not_kept());
  const v1::DecodeRequest asked = Has().decode_requests().back();
  EXPECT_EQ(asked.output_from(), kFirstPrompt + kAnswer + kMore);
  EXPECT_EQ(asked.prompt_ids_size(), asked.output_from());
  Has().AwaitLeases(0);
}

TEST_F(KnownTest, IsCountedAndItsStagesAddUp) {
  StartKeeping();
  const Got got = Generate(FirstTurn());
  ExpectContinuation(got);
  EXPECT_EQ(Continuations("taken"), 1);
  EXPECT_EQ(Metric("runahead_known_prompt_tokens_total{rest=\"decode\"}"), kKnownOfNext);
  EXPECT_EQ(Metric("runahead_ttft_stage_seconds_count{chain_width=\"0\",stage=\"prefill\"}"), 1);
  EXPECT_EQ(
      Metric("runahead_time_to_first_token_seconds_count{chain_width=\"0\",model=\"tiny\",prompt_class=\"le256\"}"), 1);
  EXPECT_EQ(Metric("runahead_known_index_tokens"), kFirstPrompt + kAnswer + kMore + kAnswer - 1)
      << "the second begins so";
  double sum = 0;
  for (const auto& [stage, seconds] : got.finished().timing().stages()) sum += seconds;
  EXPECT_NEAR(sum, got.finished().timing().ttft_s(), 1e-9);
  EXPECT_GT(got.finished().timing().stages().at("prefill"), 0);
}

// A chain says that it took long: so long all of the next turn would take.
TEST_F(KnownTest, WhatItSavesIsCountedAsPredictedAndAsItCame) {
  StartKeeping();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::Hours(1); });
  const v1::GenerateRequest next = FirstTurn();
  EXPECT_EQ(Metric("runahead_known_seconds_saved_total{as=\"predicted\"}"), 0) << "of a whole prompt nothing";
  ExpectContinuation(Generate(next));
  const double predicted = Metric("runahead_known_seconds_saved_total{as=\"predicted\"}");
  const double measured = Metric("runahead_known_seconds_saved_total{as=\"measured\"}");
  EXPECT_GT(predicted, 600);
  EXPECT_GT(measured, predicted) << "the fake takes no time for the rest";
  EXPECT_EQ(Metric("runahead_known_seconds_lost_total"), 0);
}

// The chain said half a microsecond.
TEST_F(KnownTest, WhatComesLaterThanAChainWasExpectedToIsCountedAsLost) {
  StartKeeping();
  ExpectContinuation(Generate(FirstTurn()));
  EXPECT_GT(Metric("runahead_known_seconds_saved_total{as=\"predicted\"}"), 0);
  EXPECT_EQ(Metric("runahead_known_seconds_saved_total{as=\"measured\"}"), 0);
  EXPECT_GT(Metric("runahead_known_seconds_lost_total"), 0);
}

// The worker would go on. It is told, and has kept the sequence before the client hears of the end.
TEST_F(KnownTest, AnAnswerThatAStopStringEndedIsKnownToTheNextTurn) {
  StartKeeping();
  const std::vector<int32_t> text =
      *tokenizer_->Encode("one two three four five six", {.parse_special = false, .add_bos = false});
  for (auto* workers : {&prefill_, &decode_}) {
    for (auto& worker : *workers) {
      worker->Change([&text](FakeBehaviour& b) {
        b.token = [text](int64_t index) { return text[index % text.size()]; };
        b.decode_until = static_cast<int64_t>(text.size()) - 1;
      });
    }
  }
  v1::GenerateRequest first = Ids(kFirstPrompt, 1000);
  first.mutable_stop()->add_stop("wo thr");
  const Got stopped = Generate(first);
  ASSERT_TRUE(stopped.status.ok()) << stopped.status;
  EXPECT_EQ(stopped.text(), "one t");
  v1::GenerateRequest next = Next(first, stopped, static_cast<int>(text.size()));
  next.mutable_stop()->clear_stop();
  const Got got = Generate(next);
  ExpectContinuation(got);
  EXPECT_GE(got.started().plan().known_tokens(), kFirstPrompt);
}

TEST_F(KnownTest, AConversationGoesOnAndOn) {
  StartKeeping();
  v1::GenerateRequest next = FirstTurn();
  for (int turn = 0; turn < 3; ++turn) {
    const Got got = Generate(next);
    ExpectContinuation(got);
    EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), kKnownOfNext + turn * (kAnswer + kMore));
    next = Next(next, got);
  }
}

TEST_F(KnownTest, AnAnswerOfOneTokenComesFromThereToo) {
  StartKeeping();
  const Got got = Generate(FirstTurn(/*max_tokens=*/1));
  ExpectContinuation(got);
  EXPECT_EQ(got.ids(), Whole(1));
  Has().AwaitLeases(0);
}

TEST_F(KnownTest, WhatIsGoneIsComputedByAChainAndNotAskedForAgain) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn(/*max_tokens=*/1);
  Has().Change([](FakeBehaviour& b) { b.has_kept = false; });
  LeaveNothing();
  ExpectChain(Generate(next));
  EXPECT_EQ(Continuations("gone"), 1);
  const auto asked = [this] {
    const std::vector<v1::ReserveRequest> requests = Has().reserve_requests();
    return std::count_if(requests.begin(), requests.end(), [](const auto& of) { return of.has_least_known_tokens(); });
  };
  EXPECT_EQ(asked(), 1);
  ExpectChain(Generate(next));
  EXPECT_EQ(Continuations("gone"), 1);
  EXPECT_EQ(asked(), 1);
}

class KnownEvictionsTest : public KnownTest {
 protected:
  void StartTelling(int decode) {
    testing::RouterSetup setup{.decode = decode};
    setup.able = [](v1::Capabilities& able) {
      able.set_keeps_beginnings(true);
      able.set_max_batch(4);  // else its answers to pings say nothing of what it has
    };
    Start(setup);
    AwaitReady(2, decode);
  }
  void Evict() {
    ASSERT_EQ(Metric("runahead_known_index_tokens"), kKnownOfNext);
    Has().Evict();
  }
  void AwaitNews() {
    EXPECT_TRUE(
        testing::Await("the router has heard of it", [&] { return Metric("runahead_known_index_tokens") == 0; }));
  }
};

// With the answer to a ping: nobody asks in vain.
TEST_F(KnownEvictionsTest, WhatTheWorkerHadToEvictIsAskedOfNobody) {
  StartTelling(2);
  const v1::GenerateRequest next = FirstTurn();
  const size_t reserved = Has().reserve_requests().size();
  Evict();
  AwaitNews();
  ExpectChain(Generate(next));
  EXPECT_EQ(Continuations("gone"), 0);
  for (const auto& worker : decode_) {
    const std::vector<v1::ReserveRequest> requests = worker->reserve_requests();
    EXPECT_TRUE(std::none_of(requests.begin(), requests.end(),
                             [](const auto& request) { return request.has_least_known_tokens(); }));
  }
  EXPECT_GE(Has().reserve_requests().size() + Other().reserve_requests().size(), reserved + 1);
  EXPECT_TRUE(testing::Await("it is there again", [&] {
    return Metric("runahead_known_index_tokens") == kFirstPrompt + kAnswer + kMore + kAnswer - 1;
  }));
  ExpectContinuation(Generate(Next(next, Generate(next))));
}

TEST_F(KnownEvictionsTest, AWorkerCountsThemAnewInItsNextEpoch) {
  StartTelling(1);
  FirstTurn();
  Evict();
  AwaitNews();
  // In this epoch the worker says nothing of its evictions until they are as many as in the last one.
  Has().Change([](FakeBehaviour& b) { b.loads = false; });
  Has().DropStream();
  Has().AwaitRouter();
  FirstTurn();
  Evict();
  Has().Change([](FakeBehaviour& b) { b.loads = true; });
  AwaitNews();
}

TEST_F(KnownTest, WhatIsGoneThereIsAskedOfAnotherThatHasLess) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  constexpr int kLess = 40;
  Has().Change([](FakeBehaviour& b) { b.reserve = false; });
  ExpectChain(Generate(Ids(kLess, kAnswer)));
  Has().Change([](FakeBehaviour& b) {
    b.reserve = true;
    b.has_kept = false;
  });
  const Got got = Generate(next);
  ExpectContinuation(got);
  EXPECT_EQ(got.started().plan().known_tokens(), kLess);
  EXPECT_EQ(got.started().plan().decode_worker(), absl::StrCat("decode-", 1 - has_));
  EXPECT_EQ(Continuations("gone"), 1);
  EXPECT_EQ(Continuations("taken"), 1);
}

// The answer ends, and is known, while the worker's word that it has less is under way.
TEST_F(KnownTest, WhatIsLearnedAfterAWorkerWasAskedIsNotForgottenByItsAnswer) {
  StartKeeping({.decode = 1});
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.decode_until = 2; });
  Call runs(*stub_, next);
  Has().AwaitDecodes(2);
  Has().Change([](FakeBehaviour& b) { b.answers_leases = false; });
  v1::GenerateRequest again = next;
  again.mutable_stop()->set_max_tokens(1);
  Call asks(*stub_, again);
  Has().AwaitUnanswered(1);
  Has().Change([](FakeBehaviour& b) { b.decode_until = 1000; });
  ExpectContinuation(runs.Finish());
  const double learned = Metric("runahead_known_index_tokens");
  EXPECT_EQ(learned, kFirstPrompt + kAnswer + kMore + kAnswer - 1);
  LeaveNothing();
  Has().Change([](FakeBehaviour& b) {
    b.has_kept = false;
    b.answers_leases = true;
  });
  ExpectChain(asks.Finish());
  EXPECT_EQ(Continuations("gone"), 1);
  EXPECT_EQ(Metric("runahead_known_index_tokens"), learned);
  ExpectChain(Generate(again));
  EXPECT_EQ(Continuations("gone"), 2);
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0) << "this word is newer";
}

// Of these ids alone a window may hide what the worker needs: of longer ones that begin so it may have all.
TEST_F(KnownTest, WhereThereAreWindowsNothingIsForgotten) {
  StartKeeping({.decode = 2}, /*window=*/40);
  const v1::GenerateRequest next = FirstTurn(/*max_tokens=*/1);
  Has().Change([](FakeBehaviour& b) { b.has_kept = false; });
  ExpectChain(Generate(next));
  EXPECT_EQ(Continuations("gone"), 1);
  Has().Change([](FakeBehaviour& b) { b.has_kept = true; });
  ExpectContinuation(Generate(next));
}

TEST_F(KnownTest, WithoutRoomThereAChainComputesItForAnother) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.reserve = false; });
  const Got got = Generate(next);
  ExpectChain(got);
  EXPECT_EQ(got.started().plan().decode_worker(), absl::StrCat("decode-", 1 - has_));
  EXPECT_EQ(Continuations("refused"), 1);
  EXPECT_EQ(Continuations("taken"), 0);
}

TEST_F(KnownTest, ARequestWithoutCacheNeitherTakesNorLeavesAnything) {
  StartKeeping();
  v1::GenerateRequest first = Ids(kFirstPrompt, kAnswer);
  first.set_no_cache(true);
  v1::GenerateRequest next = FirstTurn(first);
  EXPECT_TRUE(Has().reserve_requests().back().not_kept());
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
  next.set_no_cache(false);
  const Got got = Generate(next);
  ExpectChain(got);
  next = Next(next, got);
  next.set_no_cache(true);
  ExpectChain(Generate(next));
  EXPECT_EQ(Continuations("gone") + Continuations("taken"), 0);
}

TEST_F(KnownTest, AnExperimentHasItsChain) {
  StartKeeping();
  v1::GenerateRequest next = FirstTurn();
  next.mutable_experiment()->set_width(2);
  const Got got = Generate(next);
  ExpectChain(got);
  EXPECT_EQ(got.started().plan().workers_size(), 2);
}

TEST_F(KnownTest, WorkersThatDoNotSayThatTheyKeepAreNotAsked) {
  Start({.decode = 2});
  ExpectChain(Generate(FirstTurn()));
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
}

TEST_F(KnownTest, SwitchedOffNothingIsKeptOrAskedFor) {
  StartKeeping({.decode = 2, .known_beginnings = false});
  ExpectChain(Generate(FirstTurn()));
  EXPECT_TRUE(Has().reserve_requests().back().not_kept());
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
}

TEST_F(KnownTest, OneThatDrainsIsNotAsked) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn(/*max_tokens=*/1);
  EXPECT_EQ(Metric("runahead_known_index_tokens"), kKnownOfNext);
  Has().SendDraining();
  AwaitReady(2, 1);
  LeaveNothing();
  ExpectChain(Generate(next));
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
}

TEST_F(KnownTest, AnotherEpochHasNothing) {
  StartKeeping({.decode = 1});
  const v1::GenerateRequest next = FirstTurn(/*max_tokens=*/1);
  Has().DropStream();
  Has().AwaitRouter();
  AwaitReady(2, 1);
  LeaveNothing();
  ExpectChain(Generate(next));
  EXPECT_EQ(Continuations("gone"), 0);
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
}

TEST_F(KnownTest, WhenItIsLostBeforeTheFirstTokenTheAnswerComesFromOthers) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.decode_until = -1; });
  Call call(*stub_, next);
  ASSERT_TRUE(call.Read()->has_started());
  Has().AwaitDecodes(2);
  decode_[has_].reset();
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.started().plan().schedule(), "continuation");
  EXPECT_EQ(got.ids(), Whole());
  EXPECT_EQ(got.finished().plan().schedule(), "kvr");
  EXPECT_EQ(got.finished().plan().decode_worker(), absl::StrCat("decode-", 1 - has_));
  EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), 0);
  EXPECT_GE(got.finished().failovers(), 1);
  Other().AwaitLeases(0);
}

TEST_F(KnownTest, WhenItFailsInTheMiddleTheAnswerGoesOnElsewhere) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) {
    b.decode_until = 2;
    b.generate_end = grpc::Status(grpc::StatusCode::INTERNAL, "a step failed");
  });
  const Got got = Generate(next);
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids(), Whole()) << "each once";
  EXPECT_EQ(got.finished().failovers(), 1);
  EXPECT_EQ(got.finished().plan().schedule(), "kvr");
  EXPECT_EQ(Metric("runahead_failovers_total{cause=\"worker_failed\",stage=\"decode\"}"), 1);
  Has().AwaitLeases(0);
  Other().AwaitLeases(0);
}

TEST_F(KnownTest, ACancelLeavesNoLease) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.decode_until = -1; });
  Call call(*stub_, next);
  ASSERT_TRUE(call.Read()->has_started());
  Has().AwaitDecodes(2);
  call.Cancel();
  EXPECT_TRUE(absl::IsCancelled(call.Finish().status));
  Has().AwaitLeases(0);
}

TEST_F(KnownTest, ADeadlineLeavesNoLease) {
  StartKeeping();
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.decode_until = -1; });
  Call call(*stub_, next, absl::Seconds(3));
  ASSERT_TRUE(call.Read()->has_started());
  Has().AwaitDecodes(2);
  EXPECT_TRUE(absl::IsDeadlineExceeded(call.Finish().status));
  Has().AwaitLeases(0);
  EXPECT_EQ(Starts(), 2u) << "those of the first turn, on two workers";
}

// The first one runs on while the second asks.
TEST_F(KnownTest, APromptIsKnownWhileItsAnswerRuns) {
  StartKeeping();
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.decode_until = 2; });
  Call first(*stub_, Ids(kFirstPrompt, kAnswer));
  const v1::Plan plan = first.Read()->started().plan();
  ASSERT_TRUE(first.Read()->has_tokens());
  ASSERT_TRUE(first.Read()->has_tokens()) << "drawn by the decode worker";
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  const Got second = Generate(Ids(kFirstPrompt, kAnswer));
  ExpectContinuation(second);
  EXPECT_EQ(second.started().plan().decode_worker(), plan.decode_worker());
  EXPECT_EQ(second.started().plan().known_tokens(), kFirstPrompt - 1);
  EXPECT_EQ(second.ids(), Whole());
  EXPECT_EQ(first.Finish().ids(), Whole());
}

TEST_F(KnownTest, HoldsUpNobodysStart) {
  StartKeeping({.decode = 2, .max_sessions = 1});
  const v1::GenerateRequest next = FirstTurn();
  Has().Change([](FakeBehaviour& b) { b.decode_until = -1; });
  Call call(*stub_, next);
  ASSERT_TRUE(call.Read()->has_started());
  EXPECT_TRUE(Call(*stub_, Ids(5, 1), kInVain).Finish().status.ok());
  Has().Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  EXPECT_EQ(call.Finish().ids(), Whole());
}

using KnownByKeyTest = testing::KnownByKeyFixture;

TEST_F(KnownByKeyTest, WhatOneKeysRequestsLeftIsNotForAnothers) {
  StartKeeping({.decode = 1, .keys = &*door_});
  const v1::GenerateRequest first = Ids(kFirstPrompt, kAnswer);
  const Got answer = As(kAlicesKey, first);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(decode_[0]->reserve_requests().back().salt(), "alice");
  const v1::GenerateRequest next = Next(first, answer);
  ExpectChain(As(kBobsKey, next));
  EXPECT_EQ(decode_[0]->reserve_requests().back().salt(), "bob");
  ExpectContinuation(As(kAlicesKey, next));
}

}  // namespace
}  // namespace runahead
