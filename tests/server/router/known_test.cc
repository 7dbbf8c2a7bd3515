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
#include "tests/server/router/faults_fixture.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using testing::kInVain;

constexpr int kFirstPrompt = 64, kAnswer = 5, kMore = 7;
constexpr int kKnownOfNext = kFirstPrompt + kAnswer - 1;  // of its last token no KV was computed

class KnownTest : public testing::FaultsFixture {
 protected:
  void StartKeeping(testing::RouterSetup setup = {.decode = 2}, int window = 0) {
    setup.able = [window](v1::Capabilities& able) {
      able.set_keeps_beginnings(true);
      able.set_window_layers(window > 0 ? 1 : 0);
      able.set_window(window);
    };
    Start(setup);
    AwaitReady(setup.prefill, setup.decode);
  }
  // The next turn of a conversation: what was asked and answered, and some tokens more.
  static v1::GenerateRequest Next(const v1::GenerateRequest& before, const Got& got, int max_tokens = kAnswer) {
    v1::GenerateRequest next = before;
    auto& ids = *next.mutable_token_ids();
    for (const int32_t id : got.ids()) ids.add_ids(id);
    for (int i = 0; i < kMore; ++i) ids.add_ids(40 + i);
    next.mutable_stop()->set_max_tokens(max_tokens);
    return next;
  }
  // A first turn; the next one.
  v1::GenerateRequest FirstTurn(v1::GenerateRequest first, int max_tokens = kAnswer) {
    const Got got = Generate(first);
    EXPECT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().schedule(), "kvr");
    // The tail's token may come before the head hears of its Start.
    for (const std::string& worker : got.started().plan().workers()) {
      prefill_[worker == "prefill-0" ? 0 : 1]->AwaitStarts(1);
    }
    const std::string name = got.started().plan().decode_worker();
    has_ = name == "decode-0" ? 0 : 1;
    return Next(first, got, max_tokens);
  }
  v1::GenerateRequest FirstTurn(int max_tokens = kAnswer) { return FirstTurn(Ids(kFirstPrompt, kAnswer), max_tokens); }
  FakeWorker& Has() { return *decode_[has_]; }
  FakeWorker& Other() { return *decode_[1 - has_]; }
  size_t Starts() { return prefill_[0]->AwaitStarts(0).size() + prefill_[1]->AwaitStarts(0).size(); }
  double Continuations(const char* result) {
    return Metric(absl::StrCat("runahead_continuations_total{result=\"", result, "\"}"));
  }
  static std::vector<int32_t> Whole(int tokens = kAnswer) {
    std::vector<int32_t> ids(tokens);
    for (int i = 0; i < tokens; ++i) ids[i] = 100 + i;
    return ids;
  }
  static void ExpectChain(const Got& got) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().schedule(), "kvr");
    EXPECT_EQ(got.started().plan().known_tokens(), 0);
    EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), 0);
  }
  static void ExpectContinuation(const Got& got) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().schedule(), "continuation");
  }

  size_t has_ = 0;
};

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
  const v1::GenerateRequest next = FirstTurn(/*max_tokens=*/1);  // by a chain that takes no lease, so it leaves nothing
  Has().Change([](FakeBehaviour& b) { b.has_kept = false; });
  ExpectChain(Generate(next));
  EXPECT_EQ(Continuations("gone"), 1);
  const size_t asked = Has().reserve_requests().size();
  ExpectChain(Generate(next));
  EXPECT_EQ(Continuations("gone"), 1);
  EXPECT_EQ(Has().reserve_requests().size(), asked);
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
  ExpectChain(Generate(next));
  EXPECT_EQ(Metric("runahead_known_index_tokens"), 0);
}

TEST_F(KnownTest, AnotherEpochHasNothing) {
  StartKeeping({.decode = 1});
  const v1::GenerateRequest next = FirstTurn(/*max_tokens=*/1);
  Has().DropStream();
  Has().AwaitRouter();
  AwaitReady(2, 1);
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

class AlikeTest : public KnownTest {
 protected:
  void StartHolding() {
    StartKeeping();
    HoldPrefill(false, false);
  }
  // Every prefill worker has had so many Starts. What they are of is computed now, as is whatever comes later.
  void LetGoOn(size_t starts) {
    HoldPrefill(true, true);
    for (auto& worker : prefill_) {
      for (const v1::StartJob& start : worker->AwaitStarts(starts)) {
        if (start.part() + 2 == start.bounds_size()) worker->SendFirstToken(start.job(), 100);
        worker->SendDone(start.job());
      }
    }
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
  LetGoOn(1);
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
  for (auto& worker : prefill_) {  // each has room for two
    worker->AwaitCancel(worker->AwaitStarts(1).at(0).job());
    worker->SendDone(worker->AwaitStarts(1).at(0).job(), absl::CancelledError("as asked"), v1::JOB_CAUSE_ROUTER);
  }
  ASSERT_TRUE(WaitsFor(3)) << "the second or the third computes it, and the other waits for that";
  LetGoOn(2);
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
  LetGoOn(1);
  EXPECT_EQ(first.Finish().ids(), Whole());
  ExpectAllFreeAndWorking();
}

TEST_F(AlikeTest, WhatLeavesNoPromptIsNotWaitedFor) {
  StartHolding();
  v1::GenerateRequest not_kept = Ids(kFirstPrompt, kAnswer);
  not_kept.set_no_cache(true);
  Call first(*stub_, not_kept);
  ASSERT_TRUE(first.Read()->has_started());
  Call second(*stub_, Ids(kFirstPrompt, 1));
  ASSERT_TRUE(second.Read()->has_started()) << "no lease, so no decode worker will have its prompt";
  Call third(*stub_, Ids(kFirstPrompt, kAnswer));
  // As many as are given to a worker at once: the third's come when the first's are done.
  LetGoOn(2);
  for (Call* call : {&first, &second, &third}) ExpectChain(call->Finish());
  EXPECT_EQ(Metric("runahead_beginnings_awaited_total"), 0);
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

constexpr char kAlicesKey[] = "runahead_alices-secret";
constexpr char kBobsKey[] = "runahead_bobs-secret";

class KnownByKeyTest : public KnownTest {
 protected:
  void SetUp() override {
    KnownTest::SetUp();
    const auto entry = [](const char* name, const char* key) {
      return absl::StrCat("  - {name: ", name, ", hash: ", ApiKeyHashText(HashOfApiKey(key)), "}\n");
    };
    ASSERT_TRUE(WriteTextFile(path_, absl::StrCat("keys:\n", entry("alice", kAlicesKey), entry("bob", kBobsKey))).ok());
    auto ring = KeyRing::Open(path_, key_metrics_, clock_);
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
    door_.emplace(*ring_, key_metrics_, clock_);
  }
  void TearDown() override {
    KnownTest::TearDown();
    std::filesystem::remove(path_);
  }
  Got As(const std::string& key, const v1::GenerateRequest& request) {
    return Call(*stub_, request, kInVain, {}, "", {{"authorization", absl::StrCat("Bearer ", key)}}).Finish();
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/known_test_", getpid(), ".yaml");
  testing::FakeClock clock_{absl::FromUnixSeconds(1'800'000'000)};
  KeyMetrics key_metrics_{metric_registry_};
  std::unique_ptr<KeyRing> ring_;
  std::optional<KeyDoor> door_;
};

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
