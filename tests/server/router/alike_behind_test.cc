// Prompts that begin alike, and come while one of them is computed, before decode workers that compute no rows of
// prompts: the others wait for it, where that pays, and their chains begin behind it.
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/router/alike_behind_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using testing::kAlikeAnswer;
using testing::kAlikeBehind;
using testing::kAlikePrompt;
using testing::kInVain;

class AlikeBehindTest : public testing::AlikeBehindFixture {};

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
  StartHolding({.decode = 1});  // so that the prompt of the next one goes where it was expected to go
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
  EXPECT_EQ(Awaited(), 3);
  EXPECT_EQ(Whole(2), 2) << "of the first, and of one of the others";
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
  Call third(*stub_, late, kInVain);
  ASSERT_TRUE(WaitsFor(2));
  clock_.Advance(absl::Seconds(0.5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(third.Finish().status)) << "while the first is computed still";
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
  Start(OnClock({.decode = 2, .able = [](v1::Capabilities& able) {
                   able.set_keeps_beginnings(able.name() == "decode-0");
                   able.set_lends_beginnings(able.name() == "decode-1");
                   able.set_window_layers(0);
                   able.set_window(0);
                 }}));
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

TEST_F(AlikeBehindTest, WhoWaitsCountsInTheQueueAndWhereThatIsFullNobodyElseWaits) {
  StartHolding({.decode = 2, .queue_size = 1});
  Call first(*stub_, Prompt(), kInVain);
  StartFirst(first);
  Call second(*stub_, Prompt(), kInVain);
  ASSERT_TRUE(MetricBecomes("runahead_queue_requests{cause=\"beginning\"}", 1));
  Call third(*stub_, Prompt(), kInVain);
  ExpectStarts(third);
  EXPECT_EQ(Awaited(), 1);
  LetGoOn();
  ExpectWhole(first.Finish());
  ExpectBehindAllButLast(second.Finish());
  ExpectWhole(third.Finish());
  EXPECT_EQ(Metric("runahead_queue_requests{cause=\"beginning\"}"), 0);
}

class AlikeLeavesNothingTest : public testing::AlikeBehindFixture {
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
  Start(OnClock({.decode = 2}));
  AwaitReady(2, 2);
  HoldAll();
  ExpectBothComputed(Prompt());
}

}  // namespace
}  // namespace runahead
