// What requests ask for beside sampling and lengths: who is told of it, and what it does to the answer.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "server/grammar/grammar_compiler.h"
#include "server/rpc/status.h"
#include "tests/testing/router_fixture.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using testing::Got;
using ::testing::HasSubstr;
using ::testing::Not;
using RequestRules = testing::RouterFixture;

v1::GenerateRequest WithRules(v1::GenerateRequest request) {
  request.mutable_stop()->set_min_tokens(2);
  request.mutable_stop()->add_stop_ids(9);
  request.mutable_stop()->add_bad_words("bad");
  (*request.mutable_sampling()->mutable_logit_bias())[7] = -1.5f;
  return request;
}

TEST_F(RequestRules, GoToTheTailAndToTheDecodeWorker) {
  Start();
  v1::GenerateRequest request = WithRules(Ids(10, 4));
  request.mutable_experiment()->set_width(2);
  ASSERT_TRUE(Generate(request).status.ok());
  const v1::StartJob head = prefill_[0]->AwaitStarts(1).at(0), tail = prefill_[1]->AwaitStarts(1).at(0);
  EXPECT_FALSE(head.has_rules());
  EXPECT_EQ(tail.rules().min_tokens(), 2);
  EXPECT_THAT(tail.rules().end_ids(), Contains(9));
  EXPECT_THAT(tail.rules().end_ids(), Contains(kSyntheticImEnd));
  EXPECT_EQ(tail.rules().bad_ids_size(), 2);
  EXPECT_EQ(tail.sampling().logit_bias().at(7), -1.5f);
  const v1::DecodeRequest decode = decode_[0]->decode_requests().at(0);
  EXPECT_EQ(decode.rules().SerializeAsString(), tail.rules().SerializeAsString());
  EXPECT_EQ(decode.sampling().logit_bias().at(7), -1.5f);
}

TEST_F(RequestRules, AFormGoesToTheTailAndToTheDecodeWorker) {
  if (!StructuredOutputStatus().ok()) GTEST_SKIP() << "did not run here: " << StructuredOutputStatus().message();
  Start();
  v1::GenerateRequest request = Ids(10, 4);
  request.mutable_structure()->set_regex("a*");
  ASSERT_TRUE(Generate(request).status.ok());
  const v1::DrawRules rules = prefill_[0]->AwaitStarts(1).at(0).rules();
  EXPECT_EQ(rules.structure().regex(), "a*");
  EXPECT_EQ(decode_[0]->decode_requests().at(0).rules().SerializeAsString(), rules.SerializeAsString());
}

TEST_F(RequestRules, AreNotSentWhereThereAreNone) {
  Start();
  ASSERT_TRUE(Generate(Ids(10, 4)).status.ok());
  EXPECT_FALSE(prefill_[0]->AwaitStarts(1).at(0).has_rules());
  EXPECT_FALSE(decode_[0]->decode_requests().at(0).has_rules());
}

TEST_F(RequestRules, GoAlongWhereAnAnswerGoesOn) {
  Start();
  v1::GenerateRequest request = WithRules(Ids(10, 6));
  for (const int id : {100, 101, 102}) request.add_output_ids(id);
  ASSERT_TRUE(Generate(request).status.ok());
  const v1::DecodeRequest decode = decode_[0]->decode_requests().at(0);
  EXPECT_EQ(decode.output_from(), 10);
  EXPECT_EQ(decode.rules().min_tokens(), 2);
  EXPECT_EQ(decode.rules().bad_ids_size(), 2);
}

TEST_F(RequestRules, AStopStringEndsAnAnswerBehindMinTokens) {
  Start();
  prefill_[0]->Change([](FakeBehaviour& b) { b.token = [](int64_t) { return 100; }; });
  decode_[0]->Change([](FakeBehaviour& b) { b.token = [](int64_t) { return 100; }; });
  v1::GenerateRequest request = Ids(10, 8);
  request.mutable_experiment()->set_width(1);
  const std::string text = tokenizer_->Decode({100}, true);
  request.mutable_stop()->add_stop(text);
  EXPECT_THAT(Generate(request).ids(), ElementsAre(100));
  request.mutable_stop()->set_min_tokens(3);
  const Got got = Generate(request);
  EXPECT_THAT(got.ids(), ElementsAre(100, 100, 100, 100));
  EXPECT_EQ(got.text(), text + text + text);
  EXPECT_EQ(got.finished().reason(), v1::FINISH_REASON_STOP);
}

TEST_F(RequestRules, MinTokensAreNoMoreThanTheAnswerMayHave) {
  Start();
  v1::GenerateRequest request = Ids(10, 5);
  request.mutable_stop()->clear_max_tokens();
  request.mutable_stop()->set_min_tokens(testing::kFixtureContext);
  const absl::Status status = Generate(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(status), "stop.min_tokens");
}

TEST_F(RequestRules, OnlyTheLastTokensOfATruncatedPromptAreUsed) {
  Start();
  v1::GenerateRequest request = Ids(20, 3);
  request.set_truncate_prompt(6);
  for (const int part : {4, 2}) request.mutable_experiment()->add_parts(part);
  const Got got = Generate(request);
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.started().prompt_tokens(), 6);
  EXPECT_EQ(got.finished().usage().prompt_tokens(), 6);
  const std::vector<int32_t> all(request.token_ids().ids().begin(), request.token_ids().ids().end());
  const auto ids = prefill_[1]->AwaitStarts(1).at(0).ids();
  EXPECT_THAT(ids, ::testing::ElementsAreArray(std::vector<int32_t>(all.end() - 6, all.end())));
  request.set_truncate_prompt(21);
  request.clear_experiment();
  EXPECT_EQ(Generate(request).started().prompt_tokens(), 20);
}

TEST_F(RequestRules, WhatIsCutOffNeedsNoRoomInTheContext) {
  Start();
  v1::GenerateRequest request = Ids(testing::kFixtureContext + 10, 3);
  EXPECT_EQ(Generate(request).status.code(), absl::StatusCode::kOutOfRange);
  request.set_truncate_prompt(30);
  const Got got = Generate(request);
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.started().prompt_tokens(), 30);
  request.set_truncate_prompt(testing::kFixtureContext);
  EXPECT_EQ(Generate(request).status.code(), absl::StatusCode::kOutOfRange);
  std::string text;
  while (text.size() < 200'000) text += "some words ";
  v1::GenerateRequest of_text = Prompt(text, 3);
  of_text.set_truncate_prompt(50);
  EXPECT_EQ(Generate(of_text).started().prompt_tokens(), 50);
}

TEST_F(RequestRules, RulesThatLeaveNoTokenAreNobodysFault) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = 2;
    b.generate_end = grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "no token may follow");
  });
  const Got got = Generate(Ids(10, 40));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(got.status.message()), HasSubstr("no token may follow"));
  EXPECT_THAT(std::string(got.status.message()), Not(HasSubstr("to go on"))) << "it would end the same way";
  EXPECT_EQ(decode_[0]->decode_requests().size(), 1u) << "it is not tried again";
}

TEST_F(RequestRules, ATimeoutEndsTheRequestAndSaysThatItWasThat) {
  Start();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  v1::GenerateRequest request = Ids(10, 4);
  request.set_timeout_s(0.05);
  const absl::Status status = Generate(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("timeout_s: the request's 0.05 seconds are over"));
  EXPECT_EQ(BlamedField(status), "timeout_s");
  decode_[0]->AwaitLeases(0);
}

TEST_F(RequestRules, ATimeoutEndsTokensToo) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 2; });
  v1::GenerateRequest request = Ids(10, 40);
  request.set_timeout_s(0.3);
  const Got got = Generate(request);
  EXPECT_EQ(got.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(got.status.message()), HasSubstr("timeout_s: the request's 0.3 seconds are over"));
  decode_[0]->AwaitLeases(0);
}

TEST_F(RequestRules, ACallsOwnDeadlineIsNotSaidToBeTheTimeout) {
  Start();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  v1::GenerateRequest request = Ids(10, 4);
  request.set_timeout_s(3600);
  const absl::Status status = Call(*stub_, request, absl::Milliseconds(50)).Finish().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("timeout_s")));
}

TEST_F(RequestRules, AnAnswerInTimeIsNotTouched) {
  Start();
  v1::GenerateRequest request = Ids(10, 4);
  request.set_timeout_s(3600);
  EXPECT_TRUE(Generate(request).status.ok());
}

}  // namespace
}  // namespace runahead
