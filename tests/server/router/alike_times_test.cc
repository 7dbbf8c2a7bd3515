// How long who waits for a prompt that begins alike waits, and for which it does not.
#include <optional>

#include "tests/server/router/alike_behind_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::kAlikeAnswer;
using testing::kAlikePrompt;
using testing::kInVain;

// By a clock that stands still, of a cluster that has computed nothing yet.
class AlikeUntimedTest : public testing::AlikeBehindFixture {};

TEST_F(AlikeUntimedTest, WhoWaitsForOneThatHangsIsComputedByItself) {
  StartHolding();
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
  StartHolding();
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
class AlikeTimedTest : public testing::AlikeBehindFixture {
 protected:
  static constexpr absl::Duration kWhole = absl::Seconds(8);

  // Behind all but the last token of such a prompt, a chain took so long.
  void StartTimed(absl::Duration behind) {
    StartLending(OnClock({.prefill = 1, .decode = 1}));
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
