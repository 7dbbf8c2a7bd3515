// Several answers to one prompt, before decode workers that compute no rows of prompts: chains compute the later ones'
// last token behind the prompt that the first one left.
#include <map>
#include <numeric>
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

TEST_F(AnswersBehindTest, WhereTheDecodeWorkerComputesRowsTheyTakeNoChain) {
  StartLending({.decode = 2}, /*computes_rows=*/true);
  const Got got = Generate(Several(3));
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
