// Prompts that begin alike, and come while one of them is computed, before decode workers that compute no rows of
// prompts: the others wait for it, where that pays, and their chains begin behind it.
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/router/behind_known_fixture.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeClock;
using testing::Got;
using testing::kInVain;
using testing::RouterSetup;

constexpr int kAlikePrompt = 200, kAlikeAnswer = 5, kAlikeBehind = kAlikePrompt - 1;

class AlikeBehindTest : public testing::BehindKnownFixture {
 protected:
  // No times are known, nor learned: half of a prompt is worth waiting for.
  void StartHolding(const RouterSetup& setup = {.decode = 2}, int window = 0) {
    StartLending(setup, /*computes_rows=*/false, window);
    HoldAll();
  }
  void HoldAll() {
    for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::ZeroDuration(); });
    HoldPrefill(false, false);
  }
  void LetGoOn() {
    for (auto& worker : prefill_) worker->LetJobsEnd();
  }
  v1::GenerateRequest Prompt(int max_tokens = kAlikeAnswer) { return Ids(kAlikePrompt, max_tokens); }
  // It is computed now, and its chain is held.
  void StartFirst(Call& first) {
    const v1::GenerateResponse started = *first.Read();
    ASSERT_TRUE(started.has_started());
    has_ = started.started().plan().decode_worker() == "decode-1" ? 1 : 0;
  }
  ::testing::AssertionResult WaitsFor(int requests) const {
    return MetricBecomes("runahead_beginnings_awaited_total", requests);
  }
  double Awaited() { return Metric("runahead_beginnings_awaited_total"); }
  static void ExpectTokens(const Got& got, int tokens = kAlikeAnswer) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    std::vector<int32_t> ids(tokens);
    std::iota(ids.begin(), ids.end(), 100);
    EXPECT_EQ(got.ids(), ids);
  }
  static void ExpectBehindAllButLast(const Got& got) {
    const v1::Plan& plan = got.started().plan();
    EXPECT_EQ(plan.schedule(), "kvr");
    EXPECT_EQ(std::accumulate(plan.parts().begin(), plan.parts().end(), 0), 1);
    EXPECT_EQ(plan.known_tokens(), kAlikeBehind);
    EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), kAlikeBehind);
  }
  // Prompts that were computed from their first token, of this many chains or more that the line's head is in.
  int64_t Whole(size_t chains) {
    const std::vector<v1::StartJob> starts = prefill_[0]->AwaitStarts(chains);
    return std::count_if(starts.begin(), starts.end(), [](const v1::StartJob& start) { return start.bounds(0) == 0; });
  }
  void ExpectNoLeases() {
    for (auto& worker : decode_) worker->AwaitLeases(0);
  }
};

TEST_F(AlikeBehindTest, OfEqualPromptsAtOnceOneIsComputedAndTheOthersBeginBehindIt) {
  StartHolding();
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  std::vector<std::unique_ptr<Call>> others;
  for (int i = 0; i < 4; ++i) others.push_back(std::make_unique<Call>(*stub_, Prompt(), kInVain));
  ASSERT_TRUE(WaitsFor(4));
  LetGoOn();
  const Got whole = first.Finish();
  ExpectWhole(whole);
  ExpectTokens(whole);
  for (auto& other : others) {
    const Got got = other->Finish();
    ExpectTokens(got);
    ExpectBehindAllButLast(got);
    EXPECT_EQ(got.started().plan().decode_worker(), absl::StrCat("decode-", has_));
  }
  EXPECT_EQ(Whole(1), 1);
  EXPECT_EQ(Asked("taken"), 4);
  ExpectNoLeases();
}

TEST_F(AlikeBehindTest, APromptThatGoesOnBehindItWaitsForItToo) {
  StartHolding();
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Ids(kAlikePrompt + 60, kAlikeAnswer), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  LetGoOn();
  ExpectWhole(first.Finish());
  EXPECT_EQ(second.Finish().started().plan().known_tokens(), kAlikePrompt);
}

TEST_F(AlikeBehindTest, OneThatIsCancelledLeavesItToTheNext) {
  StartHolding();
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain), third(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(2));
  first.Cancel();
  EXPECT_TRUE(absl::IsCancelled(first.Finish().status));
  ASSERT_TRUE(WaitsFor(3)) << "the second or the third computes it, and the other waits for that";
  LetGoOn();
  const Got of_second = second.Finish(), of_third = third.Finish();
  ExpectTokens(of_second);
  ExpectTokens(of_third);
  EXPECT_EQ(of_second.started().plan().known_tokens() + of_third.started().plan().known_tokens(), kAlikeBehind);
  ExpectNoLeases();
}

TEST_F(AlikeBehindTest, WhoWaitsEndsWithItsClientAndItsDeadlineAndHoldsNothing) {
  StartHolding();
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  second.Cancel();
  EXPECT_TRUE(absl::IsCancelled(second.Finish().status));
  v1::GenerateRequest late = Prompt();
  late.set_timeout_s(0.5);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Call(*stub_, late, kInVain).Finish().status));
  LetGoOn();
  ExpectTokens(first.Finish());
  ExpectAllFreeAndWorking();
}

TEST_F(AlikeBehindTest, WhenItsWorkerIsLostBothAreAnsweredByAnother) {
  StartHolding();
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  decode_[has_].reset();
  LetGoOn();
  ExpectTokens(first.Finish());
  ExpectTokens(second.Finish());
  Other().AwaitLeases(0);
}

// A worker may refuse what it seemed to have room for.
TEST_F(AlikeBehindTest, WhereThereIsNoRoomAfterAllItIsComputedForAnother) {
  StartHolding();
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  Has().Change([](FakeBehaviour& b) { b.reserve = false; });
  LetGoOn();
  ExpectTokens(first.Finish());
  const Got got = second.Finish();
  ExpectTokens(got);
  ExpectWhole(got);
  EXPECT_EQ(got.started().plan().decode_worker(), absl::StrCat("decode-", 1 - has_));
  EXPECT_EQ(Asked("refused"), 1);
  ExpectNoLeases();
}

TEST_F(AlikeBehindTest, WhatIsGoneIsComputedFromTheFirstToken) {
  StartHolding();
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  Has().Change([](FakeBehaviour& b) { b.has_kept = false; });
  LetGoOn();
  ExpectTokens(first.Finish());
  const Got got = second.Finish();
  ExpectTokens(got);
  ExpectWhole(got);
  EXPECT_EQ(Asked("gone"), 1);
}

TEST_F(AlikeBehindTest, OfOneTokenTheyBeginWithWhatTheFirstOneLeaves) {
  StartHolding();
  Call first(*stub_, Prompt(1), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(1), kInVain), third(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(2));
  LetGoOn();
  ExpectTokens(first.Finish(), 1);
  const Got of_second = second.Finish(), of_third = third.Finish();
  ExpectTokens(of_second, 1);
  ExpectBehindAllButLast(of_second);
  ExpectTokens(of_third);
  ExpectBehindAllButLast(of_third);
  EXPECT_EQ(Whole(1), 1);
  ExpectNoLeases();
}

// Before it is known that the prompt goes to another worker than the one that was asked first, which computes rows.
TEST_F(AlikeBehindTest, WhereItGoesElsewhereThanWasExpectedTheOthersLookAgain) {
  Start({.decode = 2, .able = [](v1::Capabilities& able) {
           able.set_keeps_beginnings(able.name() == "decode-0");
           able.set_lends_beginnings(able.name() == "decode-1");
           able.set_window_layers(0);
           able.set_window(0);
         }});
  AwaitReady(2, 2);
  HoldAll();
  decode_[0]->Change([](FakeBehaviour& b) { b.answers_leases = false; });
  Call first(*stub_, Prompt(), kInVain);
  decode_[0]->AwaitUnanswered(1);
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  decode_[0]->Change([](FakeBehaviour& b) {
    b.reserve = false;
    b.answers_leases = true;
  });
  ASSERT_TRUE(WaitsFor(2)) << "for a prompt that its chain is to begin behind";
  StartFirst(first);
  EXPECT_EQ(has_, 1u);
  LetGoOn();
  ExpectTokens(first.Finish());
  ExpectBehindAllButLast(second.Finish());
}

// Two workers that have slots and memory for so many sequences, or any number: 0.
class AlikeRoomTest : public AlikeBehindTest {
 protected:
  void StartWith(int slots, int memory_tokens, bool computes_rows = false) {
    Start({.decode = 2, .able = [=](v1::Capabilities& able) {
             able.set_window_layers(0);
             able.set_window(0);
             able.set_lends_beginnings(!computes_rows);
             able.set_keeps_beginnings(computes_rows);
             able.set_kv_block_tokens(16);
             if (slots > 0) able.set_max_batch(slots);
             if (memory_tokens > 0) able.set_kv_capacity_tokens(memory_tokens);
           }});
    AwaitReady(2, 2);
    HoldAll();
  }
  void ExpectSecondDoesNotWait(int max_tokens = kAlikeAnswer) {
    Call first(*stub_, Prompt(), kInVain);
    StartFirst(first);
    Call second(*stub_, Prompt(max_tokens), kInVain);
    ASSERT_TRUE(second.Read()->has_started());
    LetGoOn();
    ExpectTokens(first.Finish());
    const Got got = second.Finish();
    ExpectTokens(got, max_tokens);
    ExpectWhole(got);
    EXPECT_EQ(Awaited(), 0);
    ExpectNoLeases();
  }
};

TEST_F(AlikeRoomTest, BesideOneSlotItDoesNotWaitForAChain) {
  StartWith(/*slots=*/1, 0);
  ExpectSecondDoesNotWait();
}

TEST_F(AlikeRoomTest, BesideOneSlotItDoesNotWaitForRows) {
  StartWith(/*slots=*/1, 0, /*computes_rows=*/true);
  ExpectSecondDoesNotWait();
}

TEST_F(AlikeRoomTest, OneTokenNeedsASlotThereTooToBeginBehindIt) {
  StartWith(/*slots=*/1, 0);
  ExpectSecondDoesNotWait(/*max_tokens=*/1);
}

TEST_F(AlikeRoomTest, WithMemoryForOneItDoesNotWait) {
  StartWith(0, /*memory_tokens=*/kAlikePrompt + kAlikeAnswer + 8);
  ExpectSecondDoesNotWait();
}

// The second one shares all blocks but those of its answer with the first one.
TEST_F(AlikeRoomTest, SharedBlocksAreCountedOnce) {
  StartWith(0, /*memory_tokens=*/kAlikePrompt + 3 * 64);
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  LetGoOn();
  ExpectTokens(first.Finish());
  ExpectBehindAllButLast(second.Finish());
}

TEST_F(AlikeRoomTest, AsManyWaitAsThereAreSlotsBesideTheFirst) {
  StartWith(/*slots=*/3, 0);
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain), third(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(2));
  Call fourth(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(fourth.Read()->has_started());
  EXPECT_EQ(Awaited(), 2);
  LetGoOn();
  for (Call* call : {&first, &second, &third, &fourth}) ExpectTokens(call->Finish());
}

// It gives its slot back as soon as its prompt is there.
TEST_F(AlikeRoomTest, BehindOneTokenItWaitsForItsSlot) {
  StartWith(/*slots=*/1, 0);
  Call first(*stub_, Prompt(1), kInVain);
  ASSERT_TRUE(first.Read()->has_started());
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  LetGoOn();
  ExpectTokens(first.Finish(), 1);
  ExpectBehindAllButLast(second.Finish());
}

// Next turns of a conversation, both behind the first turn, which is known.
class AlikeTurnsTest : public AlikeBehindTest {
 protected:
  v1::GenerateRequest StartKnown(bool computes_rows, int max_tokens = kAlikeAnswer) {
    StartLending({.decode = 2}, computes_rows);
    for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::ZeroDuration(); });
    return FirstTurn(max_tokens);
  }
};

TEST_F(AlikeTurnsTest, AChainBehindWhatIsKnownIsWaitedFor) {
  const v1::GenerateRequest next = StartKnown(/*computes_rows=*/false);
  HoldPrefill(false, false);
  Call first(*stub_, next, kInVain);
  ASSERT_EQ(first.Read()->started().plan().known_tokens(), testing::kHas);
  Call second(*stub_, next, kInVain), third(*stub_, next, kInVain);
  ASSERT_TRUE(WaitsFor(2));
  LetGoOn();
  ExpectTokens(first.Finish());
  for (Call* call : {&second, &third}) {
    const Got got = call->Finish();
    ExpectTokens(got);
    EXPECT_EQ(got.started().plan().known_tokens(), testing::kNext - 1);
  }
  ExpectNoLeases();
}

TEST_F(AlikeTurnsTest, RowsBehindWhatIsKnownAreWaitedFor) {
  const v1::GenerateRequest next = StartKnown(/*computes_rows=*/true);
  HoldDecode(-1);
  Call first(*stub_, next, kInVain);
  const v1::GenerateResponse started = *first.Read();
  ASSERT_EQ(started.started().plan().schedule(), "continuation");
  ASSERT_EQ(started.started().plan().known_tokens(), testing::kHas);
  Call second(*stub_, next, kInVain), third(*stub_, next, kInVain);
  ASSERT_TRUE(WaitsFor(2));
  LetDecode();
  ExpectTokens(first.Finish());
  for (Call* call : {&second, &third}) {
    const Got got = call->Finish();
    ExpectTokens(got);
    EXPECT_EQ(got.started().plan().known_tokens(), testing::kNext - 1);
  }
  ExpectNoLeases();
}

TEST_F(AlikeTurnsTest, WhereTheRestsDifferNobodyWaits) {
  const v1::GenerateRequest next = StartKnown(/*computes_rows=*/false);
  v1::GenerateRequest other = next;
  other.mutable_token_ids()->set_ids(testing::kHas + 1, 7);
  HoldPrefill(false, false);
  Call first(*stub_, next, kInVain), second(*stub_, other, kInVain);
  ASSERT_TRUE(first.Read()->has_started());
  ASSERT_TRUE(second.Read()->has_started());
  EXPECT_EQ(Awaited(), 0);
  LetGoOn();
  first.Finish();
  EXPECT_EQ(second.Finish().started().plan().known_tokens(), testing::kHas);
}

TEST_F(AlikeTurnsTest, OneThatIsCancelledLeavesItToTheNext) {
  const v1::GenerateRequest next = StartKnown(/*computes_rows=*/true);
  HoldDecode(-1);
  Call first(*stub_, next, kInVain);
  ASSERT_TRUE(first.Read()->has_started());
  Call second(*stub_, next, kInVain), third(*stub_, next, kInVain);
  ASSERT_TRUE(WaitsFor(2));
  first.Cancel();
  EXPECT_TRUE(absl::IsCancelled(first.Finish().status));
  ASSERT_TRUE(WaitsFor(3));
  LetDecode();
  const Got of_second = second.Finish(), of_third = third.Finish();
  ExpectTokens(of_second);
  ExpectTokens(of_third);
  // The one that computes it may find that the worker kept the prompt of the first, which was cancelled.
  EXPECT_GE(of_second.started().plan().known_tokens() + of_third.started().plan().known_tokens(),
            testing::kHas + testing::kNext - 1);
  ExpectNoLeases();
}

class AlikeLeavesNothingTest : public AlikeBehindTest {
 protected:
  void ExpectBothComputed(const v1::GenerateRequest& request) {
    Call first(*stub_, request, kInVain);
    StartFirst(first);
    Call second(*stub_, request, kInVain);
    ASSERT_TRUE(second.Read()->has_started());
    LetGoOn();
    ExpectWhole(first.Finish());
    second.Finish();
    EXPECT_EQ(Whole(2), 2);
    EXPECT_EQ(Awaited(), 0);
  }
};

TEST_F(AlikeLeavesNothingTest, OfAModelWithWindows) {
  StartHolding({.decode = 2}, /*window=*/40);
  ExpectBothComputed(Prompt());
}

TEST_F(AlikeLeavesNothingTest, WhereNothingIsKept) {
  StartHolding({.decode = 2, .known_beginnings = false});
  ExpectBothComputed(Prompt());
}

TEST_F(AlikeLeavesNothingTest, WithoutCache) {
  StartHolding();
  v1::GenerateRequest request = Prompt();
  request.set_no_cache(true);
  ExpectBothComputed(request);
}

TEST_F(AlikeLeavesNothingTest, WhereWorkersLendNothing) {
  Start({.decode = 2});
  AwaitReady(2, 2);
  HoldAll();
  ExpectBothComputed(Prompt());
}

// By a clock that stands still, of a cluster that has computed nothing yet.
class AlikeUntimedTest : public AlikeBehindTest {
 protected:
  void StartUntimed() { StartHolding({.decode = 2, .stall_timeout = absl::Hours(24), .clock = &clock_}); }
  static void ExpectStarts(Call& call) {
    const std::optional<v1::GenerateResponse> response = call.Read();
    ASSERT_TRUE(response.has_value() && response->has_started());
  }

  FakeClock clock_;
};

TEST_F(AlikeUntimedTest, WhoWaitsForOneThatHangsIsComputedByItself) {
  StartUntimed();
  Call hangs(*stub_, Prompt(), kInVain);
  StartFirst(hangs);
  Call waits(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  clock_.Advance(absl::Seconds(10));
  ExpectStarts(waits);
  LetGoOn();
  ExpectWhole(hangs.Finish());
  ExpectWhole(waits.Finish());
  EXPECT_EQ(Awaited(), 1);
}

// The second wait, for another one, goes on for as long as was left of the first. Without deadlines: the queue has a
// clock of its own.
TEST_F(AlikeUntimedTest, AllItsWaitsTogetherAreNoLongerThanOne) {
  StartUntimed();
  Call first(*stub_, Prompt());
  StartFirst(first);
  Call second(*stub_, Prompt()), third(*stub_, Prompt());
  ASSERT_TRUE(WaitsFor(2));
  clock_.Advance(absl::Seconds(6));
  first.Cancel();
  EXPECT_TRUE(absl::IsCancelled(first.Finish().status));
  ASSERT_TRUE(WaitsFor(3));
  clock_.Advance(absl::Seconds(4));
  ExpectStarts(second);
  ExpectStarts(third);
  LetGoOn();
  ExpectWhole(second.Finish());
  ExpectWhole(third.Finish());
}

// By a clock that stands still, so that nothing is forgotten. One prefill worker: what it takes 8 s to compute the
// second one has after 16, as it stands.
class AlikeTimedTest : public AlikeBehindTest {
 protected:
  static constexpr absl::Duration kWhole = absl::Seconds(8);

  // Behind all but the last token of such a prompt, a chain took so long.
  void StartTimed(absl::Duration behind) {
    StartLending({.prefill = 1, .decode = 1, .stall_timeout = absl::Hours(24), .clock = &clock_});
    ChainsTake(kWhole);
    v1::GenerateRequest other = Prompt();
    other.mutable_token_ids()->set_ids(0, 2);
    ExpectWhole(Generate(other));
    ChainsTake(behind);
    ExpectBehindAllButLast(Generate(other));
    ChainsTake(kWhole);
    HoldPrefill(false, false);
  }
  void ChainsTake(absl::Duration took) {
    prefill_[0]->Change([took](FakeBehaviour& b) { b.prefill_takes = took; });
  }

  FakeClock clock_;
};

TEST_F(AlikeTimedTest, WhereBringingTakesNoTimeItWaits) {
  StartTimed(absl::Seconds(1));
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  LetGoOn();
  ExpectWhole(first.Finish());
  ExpectBehindAllButLast(second.Finish());
}

TEST_F(AlikeTimedTest, WhereBringingTakesAsLongAsComputingEachIsComputed) {
  StartTimed(3 * kWhole);
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(second.Read()->has_started());
  EXPECT_EQ(Awaited(), 0);
  LetGoOn();
  ExpectWhole(first.Finish());
  ExpectWhole(second.Finish());
}

// Behind the first one a prompt of 80 s waits, which it may overtake if it is computed itself, and a chain behind the
// first one may not.
TEST_F(AlikeTimedTest, WhoMayOvertakeDoesNotWait) {
  StartTimed(absl::Seconds(1));
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  v1::GenerateRequest long_one = Ids(10 * kAlikePrompt, kAlikeAnswer);
  long_one.mutable_token_ids()->set_ids(0, 3);
  Call other(*stub_, long_one, kInVain);
  ASSERT_TRUE(other.Read()->has_started());
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(second.Read()->has_started());
  EXPECT_EQ(Awaited(), 0);
  LetGoOn();
  for (Call* call : {&first, &other, &second}) ExpectWhole(call->Finish());
}

// The first one was expected after 8 s, the second by itself after 16.
TEST_F(AlikeTimedTest, ForOneThatIsLateItWaitsHalfAsLongAgainAsThatWasToTake) {
  StartTimed(absl::Seconds(1));
  Call late(*stub_, Prompt(), kInVain);
  StartFirst(late);
  Call waits(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  clock_.Advance(absl::Seconds(12));
  const std::optional<v1::GenerateResponse> response = waits.Read();
  ASSERT_TRUE(response.has_value() && response->has_started()) << "while the other one is computed still";
  LetGoOn();
  ExpectWhole(late.Finish());
  ExpectWhole(waits.Finish());
}

TEST_F(AlikeTimedTest, OneThatIsALittleLateIsWaitedFor) {
  StartTimed(absl::Seconds(1));
  Call late(*stub_, Prompt(), kInVain);
  StartFirst(late);
  Call waits(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(WaitsFor(1));
  clock_.Advance(absl::Seconds(11));
  LetGoOn();
  ExpectWhole(late.Finish());
  ExpectBehindAllButLast(waits.Finish());
}

TEST_F(AlikeTimedTest, OneThatIsTooLateAlreadyIsNotWaitedFor) {
  StartTimed(absl::Seconds(1));
  Call late(*stub_, Prompt(), kInVain);
  StartFirst(late);
  clock_.Advance(absl::Seconds(12));
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(second.Read()->has_started());
  EXPECT_EQ(Awaited(), 0);
  LetGoOn();
  ExpectWhole(late.Finish());
  ExpectWhole(second.Finish());
}

TEST_F(AlikeTimedTest, WhoHasWaitedLongEnoughIsComputedByItself) {
  StartTimed(absl::Seconds(1));
  Call late(*stub_, Prompt());
  StartFirst(late);
  Call waits(*stub_, Prompt());
  ASSERT_TRUE(WaitsFor(1));
  clock_.AwaitWaiters(2);
  clock_.Advance(absl::Hours(1));
  ASSERT_TRUE(waits.Read()->has_started()) << "while the other one is computed still";
  LetGoOn();
  ExpectWhole(late.Finish());
  ExpectWhole(waits.Finish());
  EXPECT_EQ(Awaited(), 1);
}

}  // namespace
}  // namespace runahead
