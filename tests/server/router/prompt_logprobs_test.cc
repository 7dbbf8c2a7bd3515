// Log probabilities of a prompt: from the members of a chain to the client.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/router/session.h"
#include "server/task/run_here.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using ::testing::HasSubstr;

class PromptLogprobsTest : public testing::FaultsFixture {
 protected:
  v1::GenerateRequest Scored(int alternatives, int max_tokens) {
    v1::GenerateRequest request = Chain(max_tokens);
    request.set_prompt_logprobs(alternatives);
    return request;
  }
  // Sends of their own accord neither token nor scores nor end.
  void HoldAll() {
    HoldPrefill(false, false);
    for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.scores = false; });
  }
  // What comes first of a call that scores.
  static void ReadBegin(Call& call) {
    ASSERT_TRUE(call.Read()->has_started());
    EXPECT_EQ(call.Read()->prompt_logprobs().index(), 0);
  }
  // Fails unless each token of the request has its score once, in its order, before all tokens; the first has none.
  void ExpectScores(const Got& got, const v1::GenerateRequest& request, int alternatives) {
    int next = 0;
    for (size_t i = 0; i < got.responses.size(); ++i) {
      const v1::GenerateResponse& response = got.responses[i];
      EXPECT_TRUE(!response.has_tokens() || next == request.token_ids().ids_size()) << "a token came first";
      if (!response.has_prompt_logprobs()) continue;
      EXPECT_EQ(response.prompt_logprobs().index(), next);
      for (const v1::TokenLogprobs& logprobs : response.prompt_logprobs().logprobs()) {
        ASSERT_EQ(logprobs.top_size(), next == 0 ? 1 : alternatives + 1);
        EXPECT_EQ(logprobs.top(0).id(), request.token_ids().ids(next));
        EXPECT_EQ(logprobs.top(0).logprob(), next == 0 ? 0 : FakeWorker::ScoreOf(next));
        for (const v1::TokenLogprob& top : logprobs.top()) {
          EXPECT_EQ(top.bytes().empty() ? top.text() : top.bytes(), tokenizer_->TokenBytes(top.id()));
        }
        ++next;
      }
    }
    EXPECT_EQ(next, request.token_ids().ids_size());
  }
};

TEST_F(PromptLogprobsTest, EachTokenIsScoredOnce) {
  Start({.prefill = 3});
  for (const int width : {1, 2, 3}) {
    v1::GenerateRequest request = Scored(2, 3);
    request.mutable_experiment()->set_width(width);
    const Got got = Generate(request);
    ASSERT_EQ(got.status, absl::OkStatus());
    ExpectScores(got, request, 2);
    EXPECT_THAT(got.ids(), ElementsAre(100, 101, 102));
    EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), 0);
  }
}

TEST_F(PromptLogprobsTest, MembersAreToldWhatStandsBehindTheirPart) {
  Start();
  v1::GenerateRequest request = Scored(0, 1);
  request.mutable_experiment()->clear_width();
  request.mutable_experiment()->add_parts(7);
  request.mutable_experiment()->add_parts(3);
  ASSERT_EQ(Generate(request).status, absl::OkStatus());
  const v1::StartJob head = prefill_[0]->AwaitStarts(1).at(0), tail = prefill_[1]->AwaitStarts(1).at(0);
  EXPECT_TRUE(head.has_prompt_logprobs() && tail.has_prompt_logprobs());
  EXPECT_EQ(head.next_id(), request.token_ids().ids(7));
  EXPECT_EQ(tail.next_id(), 0);
  ASSERT_EQ(Generate(Chain(1)).status, absl::OkStatus());
  EXPECT_FALSE(prefill_[0]->AwaitStarts(2).at(1).has_prompt_logprobs());
}

TEST_F(PromptLogprobsTest, TheFirstTokenIsHeldBackUntilAllAreThere) {
  Start();
  HoldAll();
  const v1::GenerateRequest request = Scored(0, 3);
  Call call(*stub_, request);
  const uint64_t job = Job();
  ReadBegin(call);
  prefill_[1]->SendFirstToken(job, 100);
  prefill_[1]->SendScores(job, 6, 4);
  prefill_[0]->SendScores(job, 1, 3);
  EXPECT_EQ(call.Read()->prompt_logprobs().logprobs_size(), 3) << "those that follow come at once";
  prefill_[0]->SendScores(job, 4, 2);
  for (auto& worker : prefill_) worker->SendDone(job);
  const Got got = call.Finish();
  ASSERT_EQ(got.status, absl::OkStatus());
  ExpectScores(got, request, 0);
  EXPECT_THAT(got.ids(), ElementsAre(100, 101, 102));
}

TEST_F(PromptLogprobsTest, WithNothingToGenerateThereIsNoDecodeWorker) {
  Start({.trace = "all"});
  const v1::GenerateRequest request = Scored(1, 0);
  const Got got = Generate(request);
  ASSERT_EQ(got.status, absl::OkStatus());
  ExpectScores(got, request, 1);
  EXPECT_TRUE(got.ids().empty());
  for (const v1::GenerateResponse& response : got.responses) EXPECT_FALSE(response.has_tokens());
  EXPECT_EQ(got.text(), "");
  EXPECT_EQ(got.finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(got.finished().usage().prompt_tokens(), 10);
  EXPECT_EQ(got.finished().usage().completion_tokens(), 0);
  EXPECT_GT(got.finished().timing().ttft_s(), 0);
  EXPECT_EQ(got.finished().timing().tpot_s(), 0);
  EXPECT_TRUE(decode_[0]->reserve_requests().empty());
  EXPECT_EQ(Metric("runahead_generated_tokens_total"), 0);
  EXPECT_EQ(Metric("runahead_prompt_tokens_total"), 10);
  ExpectAllFreeAndWorking();
}

TEST_F(PromptLogprobsTest, APromptOfOneTokenHasThatToken) {
  Start();
  for (const int max_tokens : {0, 2}) {
    v1::GenerateRequest request = Ids(1, max_tokens);
    request.set_prompt_logprobs(3);
    const Got got = Generate(request);
    ASSERT_EQ(got.status, absl::OkStatus());
    EXPECT_EQ(static_cast<int>(got.ids().size()), max_tokens);
    EXPECT_EQ(got.finished().reason(), v1::FINISH_REASON_LENGTH);
    ExpectScores(got, request, 3);
  }
}

// What decode workers keep is computed all the same: nothing says what its tokens were given.
TEST_F(PromptLogprobsTest, KnownBeginningsAreNotUsed) {
  Start({.experiments = false, .able = [](v1::Capabilities& able) { able.set_keeps_beginnings(true); }});
  AwaitReady(2, 1);
  v1::GenerateRequest request = Ids(2000, 3);
  ASSERT_EQ(Generate(request).status, absl::OkStatus());
  decode_[0]->AwaitLeases(0);
  ASSERT_GT(Generate(request).finished().usage().cached_prompt_tokens(), 0) << "this test would prove nothing";
  request.set_prompt_logprobs(0);
  const Got got = Generate(request);
  ASSERT_EQ(got.status, absl::OkStatus());
  ExpectScores(got, request, 0);
  EXPECT_EQ(got.finished().usage().cached_prompt_tokens(), 0);
}

TEST_F(PromptLogprobsTest, AfterAFailureWhatTheClientHasIsNotSentAgain) {
  Start({.prefill = 3});
  HoldAll();
  const v1::GenerateRequest request = Scored(1, 2);
  Call call(*stub_, request);
  const uint64_t job = Job();
  ReadBegin(call);
  prefill_[0]->SendScores(job, 1, 3);
  EXPECT_EQ(call.Read()->prompt_logprobs().logprobs_size(), 3);
  HoldPrefill(true, true);
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.scores = true; });
  prefill_[0].reset();  // like a kill; the other two stand side by side
  const Got got = call.Finish();
  ASSERT_EQ(got.status, absl::OkStatus());
  ExpectScores(got, request, 1);
  EXPECT_GE(got.finished().failovers(), 1);
  EXPECT_THAT(got.ids(), ElementsAre(100, 101));
}

// Behind the first token nothing is scored again.
TEST_F(PromptLogprobsTest, ARebuildScoresNothing) {
  Start({.decode = 2});
  for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.decode_until = 2; });
  const v1::GenerateRequest request = Scored(0, 6);
  Call call(*stub_, request);
  while (auto response = call.Read()) {
    if (response->has_tokens() && response->tokens().index() + response->tokens().ids_size() >= 3) break;
  }
  const size_t decoding = decode_[0]->decode_requests().empty() ? 1 : 0;
  decode_[1 - decoding]->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
  decode_[decoding].reset();
  const Got got = call.Finish();
  ASSERT_EQ(got.status, absl::OkStatus());
  ExpectScores(got, request, 0);
  EXPECT_EQ(got.ids().size(), 6u);
  EXPECT_FALSE(prefill_[0]->AwaitStarts(2).back().has_prompt_logprobs());
}

TEST_F(PromptLogprobsTest, AWorkerOfAnOlderBuildIsNamed) {
  Start({.able = [](v1::Capabilities& able) { able.set_build("1.2.3 (abc)"); }});
  AwaitReady(2, 1);
  prefill_[1]->Change([](FakeBehaviour& b) { b.scores = false; });
  const Got got = Generate(Scored(0, 3));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable) << got.status;
  EXPECT_THAT(got.status.message(), HasSubstr("prefill worker prefill-1: its build 1.2.3 (abc) does not report all"));
  EXPECT_TRUE(got.ids().empty());
  ExpectAllFreeAndWorking();
}

TEST_F(PromptLogprobsTest, ScoresThatAreNotThoseOfThePartAreTheMembersFault) {
  Start();
  HoldAll();
  Call call(*stub_, Scored(0, 3));
  for (size_t attempt = 1; attempt <= 2; ++attempt) {
    const uint64_t job = prefill_[0]->AwaitStarts(attempt).back().job();
    prefill_[0]->SendScores(job, 2, 1);
    prefill_[1]->AwaitCancel(job);
  }
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(got.status.message(), HasSubstr("prefill worker prefill-0: reports log probabilities of tokens [2, 3)"));
  ExpectAllFreeAndWorking();
}

TEST_F(PromptLogprobsTest, WhatMakesNoSenseIsRefusedByItsField) {
  Start();
  const auto refusal = [this](const v1::GenerateRequest& request) {
    const absl::Status status = Generate(request).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(Scored(21, 1)), HasSubstr("prompt_logprobs: 21 is not in [0, 20]"));
  EXPECT_THAT(refusal(Scored(-1, 1)), HasSubstr("prompt_logprobs: -1 is not in [0, 20]"));
  EXPECT_THAT(refusal(Scored(0, -1)), HasSubstr("stop.max_tokens: -1 is not at least 0"));
  EXPECT_THAT(refusal(Chain(0)), HasSubstr("stop.max_tokens: 0 is not at least 1"));
  v1::GenerateRequest goes_on = Scored(0, 5);
  goes_on.add_output_ids(7);
  EXPECT_THAT(refusal(goes_on), HasSubstr("prompt_logprobs: they came with the answer's begin"));
  v1::GenerateRequest several = Scored(0, 0);
  several.set_n(2);
  EXPECT_THAT(refusal(several), HasSubstr("n: 2 answers of no tokens"));
  v1::GenerateRequest at_least = Scored(0, 0);
  at_least.mutable_stop()->set_min_tokens(1);
  EXPECT_THAT(refusal(at_least), HasSubstr("stop.min_tokens: 1 is more than max_tokens"));
}

// Notes what of a budget is taken when the chain has its work, and when the first token comes.
class MeasuringSink final : public ResponseSink {
 public:
  explicit MeasuringSink(const ByteBudget& budget) : budget_(budget) {}
  void Send(v1::GenerateResponse response) override {
    if (response.has_started()) started = budget_.taken();
    if (response.has_tokens() && first_token == 0) first_token = budget_.taken();
  }
  int64_t started = 0, first_token = 0;

 private:
  const ByteBudget& budget_;
};

TEST_F(PromptLogprobsTest, ScoresAreCountedInTheRequestsMemory) {
  Start();
  const auto run = [this](const v1::GenerateRequest& request, ByteBudget& budget, MeasuringSink& sink) {
    CancelToken cancel;
    Session session(*parts_, request, RealClock().Now(), absl::InfiniteFuture(), cancel, sink, std::nullopt,
                    budget.None());
    return RunHere(session.Run());
  };
  ByteBudget budget(1 << 20);
  MeasuringSink plain(budget), scored(budget);
  EXPECT_EQ(run(Chain(3), budget, plain), absl::OkStatus());
  EXPECT_EQ(plain.started, plain.first_token);
  EXPECT_EQ(run(Scored(4, 3), budget, scored), absl::OkStatus());
  EXPECT_EQ(scored.started, plain.started + 10 * 5 * kBytesPerPromptLogprob);
  EXPECT_EQ(scored.first_token, scored.started) << "they may wait for the client";
  ByteBudget small(plain.started + 10);
  MeasuringSink nothing(small);
  EXPECT_EQ(run(Scored(4, 3), small, nothing).code(), absl::StatusCode::kInvalidArgument) << "it could never be held";
}

// Nothing is kept of so short a prompt, so that each answer computes it: not before the first one is scored.
TEST_F(PromptLogprobsTest, NoAnswersTokensComeBeforeTheScores) {
  Start();
  HoldAll();
  v1::GenerateRequest request = Scored(0, 2);
  request.set_n(2);
  Call call(*stub_, request);
  const uint64_t job = Job();
  ReadBegin(call);
  prefill_[1]->AwaitStarts(1);  // which is held, as the head's is
  HoldPrefill(true, true);
  prefill_[0]->SendScores(job, 1, 5);
  prefill_[1]->SendScores(job, 6, 4);
  prefill_[1]->SendFirstToken(job, 100);
  for (auto& worker : prefill_) worker->SendDone(job);
  const Got got = call.Finish();
  ASSERT_EQ(got.status, absl::OkStatus());
  ExpectScores(got, request, 0);
  EXPECT_EQ(got.ids().size(), 4u);
}

// Where nothing is generated the prompt may fill the context.
TEST_F(PromptLogprobsTest, APromptMayFillTheContext) {
  Start();
  v1::GenerateRequest request = Ids(testing::kFixtureContext, 0);
  request.set_prompt_logprobs(0);
  const Got got = Generate(request);
  ASSERT_EQ(got.status, absl::OkStatus());
  ExpectScores(got, request, 0);
  request.mutable_token_ids()->add_ids(5);
  EXPECT_THAT(Generate(request).status.message(), HasSubstr("4097 tokens are more than the context of 4096 tokens"));
}

}  // namespace
}  // namespace runahead
