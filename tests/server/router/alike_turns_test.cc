// Next turns of a conversation that begin alike, and come while the rest of one of them is computed.
#include "tests/server/router/alike_behind_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using testing::kAlikeAnswer;
using testing::kInVain;

// Next turns of a conversation, both behind the first turn, which is known.
class AlikeTurnsTest : public testing::AlikeBehindFixture {
 protected:
  v1::GenerateRequest StartKnown(bool computes_rows, int decode = 2) {
    StartLending(OnClock({.decode = decode}), computes_rows);
    for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.prefill_takes = absl::ZeroDuration(); });
    return FirstTurn(kAlikeAnswer);
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
  const v1::GenerateRequest next = StartKnown(/*computes_rows=*/true, /*decode=*/1);
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
  EXPECT_EQ(Awaited(), 3);
  ExpectNoLeases();
}

}  // namespace
}  // namespace runahead
