// Prompts that ask for one token, before decode workers that compute no rows of prompts: a chain begins behind what is
// known of them, and what it computes is kept behind the answer.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/router/decode_lease.h"
#include "tests/server/router/behind_known_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using testing::kFirst;
using testing::kFirstAnswer;
using testing::kHas;
using testing::kInVain;
using testing::kNext;

class OneTokenBehindTest : public testing::BehindKnownFixture {
 protected:
  ::testing::AssertionResult IndexHas(int tokens) const { return MetricBecomes("runahead_known_index_tokens", tokens); }
  static void ExpectToken(const Got& got) { EXPECT_EQ(got.ids(), std::vector<int32_t>{100}); }
  void ExpectNoLeases() {
    for (auto& worker : decode_) worker->AwaitLeases(0);
  }
  // With the chain behind what is known under way, and held.
  void StartHeld(Call& call) {
    ASSERT_TRUE(call.Read()->has_started());
    for (auto& worker : prefill_) worker->AwaitStarts(2);
  }
};

TEST_F(OneTokenBehindTest, AChainComputesTheRestAndThePromptIsKept) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn(1);
  const Got got = Generate(next);
  ExpectBehind(got);
  ExpectToken(got);
  EXPECT_EQ(got.started().plan().decode_worker(), absl::StrCat("decode-", has_));
  const v1::ReserveRequest reserved = Has().reserve_requests().back();
  EXPECT_TRUE(reserved.rest_handed());
  EXPECT_EQ(reserved.least_known_tokens(), kHas);
  EXPECT_EQ(reserved.total_tokens(), kNext + 1);
  EXPECT_EQ(reserved.max_x_tokens(), 0) << "no step makes KV of X";
  EXPECT_EQ(Asked("taken"), 1);
  ASSERT_TRUE(IndexHas(kNext));
  ExpectNoLeases();
  EXPECT_EQ(Has().decode_requests().back().max_tokens(), 1);
  const Got again = Generate(next);
  ExpectToken(again);
  EXPECT_EQ(again.finished().usage().cached_prompt_tokens(), kNext - 1);
}

TEST_F(OneTokenBehindTest, APromptThatIsSentAheadIsKnownToTheNextOne) {
  StartLending();
  const Got ahead = Generate(Ids(kFirst, 1));
  ExpectWhole(ahead);
  EXPECT_EQ(ahead.started().plan().decode_worker(), "") << "nothing is decoded";
  ASSERT_TRUE(IndexHas(kFirst));
  ExpectNoLeases();
  const Got next = Generate(Ids(kNext, kFirstAnswer));
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_EQ(next.started().plan().known_tokens(), kFirst);
}

TEST_F(OneTokenBehindTest, TheAnswerWaitsForNoHandOff) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn(1);
  HoldPrefill(true, false);
  HoldDecode(0);
  ExpectBehind(Call(*stub_, next, kInVain).Finish());
  Has().AwaitDecodes(2);
  EXPECT_EQ(Metric("runahead_known_index_tokens"), kHas);
  LetDecode();
  EXPECT_TRUE(IndexHas(kNext));
  ExpectNoLeases();
}

TEST_F(OneTokenBehindTest, WithoutRoomItIsComputedAndWaitsForNone) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn(1);
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.reserve = false; });
  const Got got = Call(*stub_, next, kInVain).Finish();
  ExpectWhole(got);
  ExpectToken(got);
  EXPECT_EQ(Asked("refused"), 1);
}

TEST_F(OneTokenBehindTest, WhatIsGoneIsComputedFromTheFirstToken) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn(1);
  Has().Change([](FakeBehaviour& b) { b.has_kept = false; });
  const Got got = Generate(next);
  ExpectWhole(got);
  ExpectToken(got);
  EXPECT_EQ(Asked("gone"), 1);
  ExpectNoLeases();
}

// Its client's deadline comes before the time that a decode worker has for a Reserve that is needed.
TEST_F(OneTokenBehindTest, AWorkerThatDoesNotAnswerIsNotWaitedForLong) {
  StartLending({.decode = 1});
  const v1::GenerateRequest next = FirstTurn(1);
  parts_->keep_patience = absl::Milliseconds(50);
  Has().Change([](FakeBehaviour& b) { b.answers_leases = false; });
  ExpectWhole(Call(*stub_, next, kReservePatience - absl::Seconds(1)).Finish());
}

TEST_F(OneTokenBehindTest, WhenItsWorkerIsLostAllIsComputedWithoutOne) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn(1);
  HoldPrefill(false, false);
  Call call(*stub_, next, kInVain);
  StartHeld(call);
  HoldPrefill(true, true);
  const auto asked = Other().reserve_requests().size();
  decode_[has_].reset();
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  ExpectToken(got);
  EXPECT_EQ(got.finished().plan().known_tokens(), 0);
  EXPECT_EQ(got.finished().failovers(), 1);
  EXPECT_EQ(Other().reserve_requests().size(), asked);
}

TEST_F(OneTokenBehindTest, WhereTheHeadCannotGetItTheNextAttemptComputesAll) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn(1);
  HoldPrefill(false, false);
  Call call(*stub_, next, kInVain);
  StartHeld(call);
  const uint64_t job = prefill_[0]->AwaitStarts(2).back().job();
  HoldPrefill(true, true);
  prefill_[0]->SendDone(job, absl::UnavailableError("KV of its beginning did not come"), v1::JOB_CAUSE_DECODE);
  prefill_[1]->SendDone(job, absl::CancelledError("its predecessor dropped it"), v1::JOB_CAUSE_PEER);
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  ExpectToken(got);
  EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(got.finished().failovers(), 1);
  ExpectNoLeases();
}

TEST_F(OneTokenBehindTest, ACancelLeavesNoLeaseAndNoJob) {
  StartLending();
  const v1::GenerateRequest next = FirstTurn(1);
  HoldPrefill(false, false);
  Call call(*stub_, next, kInVain);
  StartHeld(call);
  call.Cancel();
  EXPECT_TRUE(absl::IsCancelled(call.Finish().status));
  ExpectCancelled(kHas);
  ExpectAllFreeAndWorking();
}

TEST_F(OneTokenBehindTest, ADeadlineLeavesNoLeaseAndNoJob) {
  StartLending();
  v1::GenerateRequest next = FirstTurn(1);
  next.set_timeout_s(0.5);
  HoldPrefill(false, false);
  Call call(*stub_, next, kInVain);
  StartHeld(call);
  EXPECT_TRUE(absl::IsDeadlineExceeded(call.Finish().status));
  ExpectCancelled(kHas);
  ExpectAllFreeAndWorking();
}

// What windows hide of its last token was not handed off, so that nobody could begin with it.
TEST_F(OneTokenBehindTest, OfAModelWithWindowsItLeavesNothing) {
  StartLending({.decode = 2}, /*computes_rows=*/false, /*window=*/40);
  const v1::GenerateRequest next = FirstTurn(1);
  const size_t decoded = Has().decode_requests().size();
  ExpectBehind(Generate(next));
  ExpectNoLeases();
  EXPECT_EQ(Has().decode_requests().size(), decoded);
  EXPECT_EQ(Metric("runahead_known_index_tokens"), kHas);
}

TEST_F(OneTokenBehindTest, WhatAnAnswerThatEndsWithItsFirstTokenHasAsXInPlaceOfKvIsNotKept) {
  StartLending({.decode = 1});
  v1::GenerateRequest request = Ids(kFirst, kFirstAnswer);
  request.mutable_stop()->add_stop_ids(100);
  for (const int kv_from : {kFirst / 2, 0}) {
    decode_[0]->Change([kv_from](FakeBehaviour& b) {
      b.takes_x = true;
      b.kv_from = kv_from;
    });
    ExpectToken(Generate(request));
    ExpectNoLeases();
    EXPECT_EQ(decode_[0]->decode_requests().size(), kv_from > 0 ? 0u : 1u) << kv_from;
  }
  EXPECT_TRUE(IndexHas(kFirst));
}

}  // namespace
}  // namespace runahead
