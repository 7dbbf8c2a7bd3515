// Several answers to one prompt, before decode workers that compute no rows of prompts: chains compute the later ones'
// last token behind the prompt that the first one left.
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "tests/server/router/behind_known_fixture.h"
#include "tests/testing/await.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using testing::kInVain;

constexpr int kPromptOfAll = 200, kOfEach = 5, kAllButLast = kPromptOfAll - 1;

class AnswersBehindTest : public testing::BehindKnownFixture {
 protected:
  // One decode worker, which steps so many sequences together.
  void StartWithSlots(int slots) {
    Start({.prefill = 1, .able = [slots](v1::Capabilities& able) {
             able.set_lends_beginnings(true);
             able.set_max_batch(slots);
           }});
    AwaitReady(1, 1);
  }
  v1::GenerateRequest Several(int answers, int tokens = kOfEach) {
    v1::GenerateRequest request = Ids(kPromptOfAll, tokens);
    request.set_n(answers);
    return request;
  }
  void PrefillTakes(absl::Duration takes) {
    for (auto& worker : prefill_) worker->Change([takes](FakeBehaviour& b) { b.prefill_takes = takes; });
  }
  static std::map<int, Got> ByAnswer(const Got& got) {
    std::map<int, Got> answers;
    for (const v1::GenerateResponse& response : got.responses) {
      const int answer = response.has_started()  ? response.started().answer()
                         : response.has_tokens() ? response.tokens().answer()
                                                 : response.finished().answer();
      answers[answer].responses.push_back(response);
    }
    return answers;
  }
  static void ExpectAnswers(const Got& got, int answers, int tokens = kOfEach) {
    ASSERT_TRUE(got.status.ok()) << got.status;
    std::vector<int32_t> ids(tokens);
    std::iota(ids.begin(), ids.end(), 100);
    const std::map<int, Got> each = ByAnswer(got);
    ASSERT_EQ(each.size(), static_cast<size_t>(answers));
    for (const auto& [number, answer] : each) EXPECT_EQ(answer.ids(), ids) << number;
  }
  static void ExpectBehindAllButLast(const Got& answer) {
    const v1::Plan& plan = answer.started().plan();
    EXPECT_EQ(plan.schedule(), "kvr");
    EXPECT_EQ(std::accumulate(plan.parts().begin(), plan.parts().end(), 0), 1);
    EXPECT_EQ(plan.known_tokens(), kAllButLast);
    EXPECT_EQ(answer.finished().usage().cached_prompt_tokens(), kAllButLast);
  }
  void ExpectNoLeases() {
    for (auto& worker : decode_) worker->AwaitLeases(0);
  }
  // Of two answers: the first one has left the prompt at decode_[has_], and the second one's chain is held.
  void StartWithTheSecondHeld(Call& call) {
    const v1::Started first = call.Read()->started();
    has_ = first.plan().decode_worker() == "decode-1" ? 1 : 0;
    ASSERT_TRUE(call.Read()->has_tokens());
    HoldPrefill(false, false);
    Has().Change([](FakeBehaviour& b) { b.decode_until = 1; });
    ASSERT_TRUE(testing::Await("the second answer's chain has begun", [&] {
      for (auto& worker : prefill_) {
        for (const v1::StartJob& start : worker->AwaitStarts(0)) {
          if (start.bounds(0) == kAllButLast) return true;
        }
      }
      return false;
    }));
  }
};

TEST_F(AnswersBehindTest, ThePromptIsComputedOnce) {
  StartLending();
  const Got got = Generate(Several(3));
  ExpectAnswers(got, 3);
  std::map<int, Got> answers = ByAnswer(got);
  ExpectWhole(answers[0]);
  for (const int later : {1, 2}) {
    SCOPED_TRACE(later);
    ExpectBehindAllButLast(answers[later]);
    EXPECT_EQ(answers[later].started().plan().decode_worker(), answers[0].started().plan().decode_worker());
  }
  EXPECT_EQ(Asked("taken"), 2);
  EXPECT_EQ(Metric("runahead_known_prompt_tokens_total{rest=\"chain\"}"), 0) << "nothing of another request";
  EXPECT_EQ(Metric("runahead_known_seconds_saved_total{as=\"predicted\"}"), 0);
  ExpectNoLeases();
}

// Beside the first one: the other worker has nothing to do.
TEST_F(AnswersBehindTest, WhereTheDecodeWorkerComputesRowsTheyTakeNoChain) {
  StartLending({.decode = 2}, /*computes_rows=*/true);
  HoldDecode(1);
  Call call(*stub_, Several(3), kInVain);
  EXPECT_TRUE(testing::Await("all answers are at one decode worker",
                             [&] { return decode_[0]->leases() == 3 || decode_[1]->leases() == 3; }));
  LetDecode();
  const Got got = call.Finish();
  ExpectAnswers(got, 3);
  std::map<int, Got> answers = ByAnswer(got);
  for (const int later : {1, 2}) EXPECT_EQ(answers[later].started().plan().schedule(), "continuation") << later;
}

// A decode worker that stands still before its first token has not said that it has the prompt.
TEST_F(AnswersBehindTest, TheyBeginOnceThePromptIsThere) {
  StartLending({.decode = 1});
  HoldDecode(0);
  Call call(*stub_, Several(3), kInVain);
  decode_[0]->AwaitDecodes(1);
  EXPECT_EQ(decode_[0]->reserve_requests().size(), 1u);
  LetDecode();
  const Got got = call.Finish();
  ExpectAnswers(got, 3);
  std::map<int, Got> answers = ByAnswer(got);
  for (const int later : {1, 2}) ExpectBehindAllButLast(answers[later]);
}

// A long prompt that is computed before them: all of theirs could overtake that, and a chain behind a beginning cannot.
TEST_F(AnswersBehindTest, WhatWaitsBeforeThemMakesThemComputeNoMore) {
  StartLending({.prefill = 1, .decode = 1});
  PrefillTakes(absl::Milliseconds(100));
  HoldDecode(0);
  Call call(*stub_, Several(2), kInVain);
  decode_[0]->AwaitDecodes(1);
  HoldPrefill(false, false);
  v1::GenerateRequest other = Ids(15 * kPromptOfAll, kOfEach);
  other.mutable_token_ids()->set_ids(0, 1);
  queue_->PrefillTook(other.token_ids().ids_size(), /*width=*/1, absl::Seconds(2));
  Call before(*stub_, other, kInVain);
  prefill_[0]->AwaitStarts(2);
  LetDecode();
  EXPECT_EQ(prefill_[0]->AwaitStarts(3).back().bounds(0), kAllButLast);
  prefill_[0]->LetJobsEnd();
  ExpectAnswers(call.Finish(), 2);
  EXPECT_TRUE(before.Finish().status.ok());
}

// Bringing takes longer than the prompt took before chains became slow, and less than it takes now.
TEST_F(AnswersBehindTest, WhereAllChainsAreSlowTheyBeginThereToo) {
  StartLending({.prefill = 1, .decode = 1});
  PrefillTakes(absl::Seconds(1));
  HoldDecode(0);
  Call call(*stub_, Several(2), kInVain);
  decode_[0]->AwaitDecodes(1);
  const ChainRequest whole{.tokens = kPromptOfAll, .parts = {}};
  ChainRequest half = whole;
  half.known_tokens = kPromptOfAll / 2;
  const auto take_a_minute = [this](const ChainRequest& chain, int times) {
    for (int i = 0; i < times; ++i) queue_->ChainTook(chain, /*width=*/1, 0, absl::Minutes(1), *table_.Get());
  };
  take_a_minute(half, 4);
  take_a_minute(whole, 3);
  HoldDecode(1);  // the first one goes on: chains are slow beside as many sequences
  EXPECT_EQ(prefill_[0]->AwaitStarts(2).back().bounds(0), kAllButLast);
  LetDecode();
  ExpectAnswers(call.Finish(), 2);
}

TEST_F(AnswersBehindTest, WhatTheirOneTokenTakesSaysNothingOfBringing) {
  StartLending({.prefill = 1, .decode = 1});
  PrefillTakes(absl::Seconds(1));
  HoldDecode(0);
  Call call(*stub_, Several(2), kInVain);
  decode_[0]->AwaitDecodes(1);
  PrefillTakes(absl::Minutes(1));
  LetDecode();
  ExpectAnswers(call.Finish(), 2);
  const Got next = Generate(Ids(kPromptOfAll + 10, kOfEach));
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_EQ(next.started().plan().known_tokens(), kPromptOfAll);
}

TEST_F(AnswersBehindTest, WhoWaitedForASlotBeginsThereToo) {
  StartWithSlots(1);
  HoldDecode(1);
  Call call(*stub_, Several(2), kInVain);
  ASSERT_TRUE(MetricBecomes("runahead_queue_requests{cause=\"slot\"}", 1));
  LetDecode();
  const Got got = call.Finish();
  ExpectAnswers(got, 2);
  ExpectBehindAllButLast(ByAnswer(got)[1]);
  ExpectNoLeases();
}

TEST_F(AnswersBehindTest, ManyGoThroughFewSlots) {
  StartWithSlots(3);
  ExpectAnswers(Call(*stub_, Several(24), kInVain).Finish(), 24);
  ExpectNoLeases();
}

TEST_F(AnswersBehindTest, OfOneTokenTheyBeginWithWhatTheFirstOneLeaves) {
  StartLending();
  const Got got = Generate(Several(3, /*tokens=*/1));
  ExpectAnswers(got, 3, 1);
  std::map<int, Got> answers = ByAnswer(got);
  ExpectWhole(answers[0]);
  for (const int later : {1, 2}) ExpectBehindAllButLast(answers[later]);
  ExpectNoLeases();
}

// The first one's is all that the others wait for.
TEST_F(AnswersBehindTest, OfOneTokenTheThirdDoesNotWaitForTheSecondsHandOff) {
  StartLending({.decode = 1});
  HoldDecode(0);
  Call call(*stub_, Several(3, /*tokens=*/1), kInVain);
  StartWithTheSecondHeld(call);
  HoldDecode(0);
  for (auto& worker : prefill_) worker->LetJobsEnd();
  decode_[0]->AwaitDecodes(3);
  LetDecode();
  ExpectAnswers(call.Finish(), 3, 1);
  ExpectNoLeases();
}

// What the first one was to leave is lost on its way.
TEST_F(AnswersBehindTest, OfOneTokenTheThirdWaitsForThePromptThatTheSecondComputes) {
  StartLending({.prefill = 1, .decode = 1});
  HoldDecode(0);
  Call call(*stub_, Several(3, /*tokens=*/1), kInVain);
  decode_[0]->AwaitDecodes(1);
  HoldPrefill(false, false);
  decode_[0]->Change([](FakeBehaviour& b) { b.generate_end = grpc::Status(grpc::StatusCode::INTERNAL, "no memory"); });
  prefill_[0]->AwaitStarts(2);
  decode_[0]->Change([](FakeBehaviour& b) { b.generate_end = std::nullopt; });
  LetDecode();
  prefill_[0]->LetJobsEnd();
  const Got got = call.Finish();
  ExpectAnswers(got, 3, 1);
  std::map<int, Got> answers = ByAnswer(got);
  for (const int whole : {0, 1}) ExpectWhole(answers[whole]);
  ExpectBehindAllButLast(answers[2]);
  ExpectNoLeases();
}

TEST_F(AnswersBehindTest, WhereWhatWasLeftIsGoneEachComputesThePrompt) {
  StartLending({.decode = 1});
  decode_[0]->Change([](FakeBehaviour& b) { b.has_kept = false; });
  const Got got = Generate(Several(2));
  ExpectAnswers(got, 2);
  ExpectWhole(ByAnswer(got)[1]);
  EXPECT_EQ(Asked("gone"), 1);
  ExpectNoLeases();
}

TEST_F(AnswersBehindTest, WhenTheirWorkerIsLostTheyGoOnAtAnother) {
  StartLending();
  HoldDecode(0);
  Call call(*stub_, Several(2), kInVain);
  StartWithTheSecondHeld(call);
  Other().Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  decode_[has_].reset();
  for (auto& worker : prefill_) worker->LetJobsEnd();
  const Got got = call.Finish();
  ExpectAnswers(got, 2);
  for (const auto& [number, answer] : ByAnswer(got)) EXPECT_GE(answer.finished().failovers(), 1) << number;
  Other().AwaitLeases(0);
}

TEST_F(AnswersBehindTest, ACancelLeavesNoLeaseAndNoJob) {
  StartLending();
  HoldDecode(0);
  Call call(*stub_, Several(2), kInVain);
  StartWithTheSecondHeld(call);
  call.Cancel();
  EXPECT_TRUE(absl::IsCancelled(call.Finish().status));
  ExpectCancelled(kAllButLast);
  ExpectAllFreeAndWorking();
}

}  // namespace
}  // namespace runahead
