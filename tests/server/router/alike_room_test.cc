// As many requests wait for a prompt that begins alike as have slots and memory beside it.
#include "tests/server/router/alike_behind_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::Got;
using testing::kAlikeAnswer;
using testing::kAlikePrompt;
using testing::kInVain;

// Two workers that have slots and memory for so many sequences, or any number: 0.
class AlikeRoomTest : public testing::AlikeBehindFixture {
 protected:
  void StartWith(int slots, int memory_tokens, bool computes_rows = false) {
    Start(OnClock({.decode = 2, .able = [=](v1::Capabilities& able) {
                     able.set_window_layers(0);
                     able.set_window(0);
                     able.set_lends_beginnings(!computes_rows);
                     able.set_keeps_beginnings(computes_rows);
                     able.set_kv_block_tokens(16);
                     if (slots > 0) able.set_max_batch(slots);
                     if (memory_tokens > 0) able.set_kv_capacity_tokens(memory_tokens);
                   }}));
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

}  // namespace
}  // namespace runahead
