// Requests for which there is no room at the moment, or never.
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "server/rpc/status.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using ::testing::HasSubstr;

using WaitingTest = testing::FaultsFixture;

constexpr int kSharesNoPlace = 200;  // tokens: more than share a place

TEST_F(WaitingTest, AFullDecodeWorkerIsPassedOver) {
  Start({.decode = 2});
  decode_[0]->Change([](FakeBehaviour& b) { b.reserve = false; });
  const Got got = Generate(Chain(3));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.started().plan().decode_worker(), "decode-1");
}

TEST_F(WaitingTest, WaitsForMemoryWhenAllAreFull) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) { b.reserve = false; });
  Call call(*stub_, Chain(3));
  decode_[0]->AwaitReservations(2);  // it came back
  decode_[0]->Change([](FakeBehaviour& b) { b.reserve = true; });
  EXPECT_TRUE(call.Finish().status.ok());
  ExpectAllFreeAndWorking();
}

TEST_F(WaitingTest, WhatNoEmptyStoreHoldsIsRefusedAtOnce) {
  Start({.able = [](v1::Capabilities& able) { able.set_kv_capacity_tokens(100); }});
  AwaitReady(2, 1);
  const Got got = Generate(Ids(60, 50));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(got.status.message(), HasSubstr("110 tokens"));
  EXPECT_THAT(got.status.message(), HasSubstr("holds 100"));
  EXPECT_TRUE(Generate(Ids(60, 40)).status.ok());
}

TEST_F(WaitingTest, WhatOnlyAWorkerThatRestartsCouldHoldIsUnavailable) {
  Start({.decode = 2, .absence_timeout = absl::ZeroDuration(), .able = [](v1::Capabilities& able) {
           const bool large = able.name() == "prefill-0" || able.name() == "decode-0";
           able.set_max_prefix_tokens(large ? 1000 : 100);
           able.set_kv_capacity_tokens(large ? 1000 : 100);
         }});
  AwaitReady(2, 2);
  EXPECT_TRUE(Generate(Ids(500, 1)).status.ok());
  EXPECT_TRUE(Generate(Ids(50, 500)).status.ok());
  prefill_[0].reset();
  decode_[0].reset();
  AwaitReady(1, 1);
  for (const auto& [prompt, tokens] : {std::pair(500, 1), std::pair(50, 500)}) {
    const absl::Status status = Generate(Ids(prompt, tokens)).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(RetryAfter(status).has_value());
  }
  EXPECT_EQ(Generate(Ids(1001, 1)).status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Generate(Ids(50, 951)).status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(Generate(Ids(50, 50)).status.ok());
}

TEST_F(WaitingTest, WorkersThatAreRefusedAreNotWaitedFor) {
  Start({.absence_timeout = absl::Hours(1), .able = [](v1::Capabilities& able) {
           if (able.name() == "decode-0") able.set_weights_fingerprint("fine-tuned");
         }});
  ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"decode\",state=\"refused\"}", 1));
  const absl::Status status = Call(*stub_, Ids(5, 3), testing::kInVain).Finish().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), HasSubstr("weights_fingerprint is fine-tuned"));
}

TEST_F(WaitingTest, AFullQueueSaysWhenToTryAgain) {
  Start({.prefill = 1, .queue_size = 1});
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  std::vector<std::unique_ptr<Call>> running;
  for (int i = 0; i < 2; ++i) {
    running.push_back(std::make_unique<Call>(*stub_, Ids(kSharesNoPlace, 1)));
    prefill_[0]->AwaitStarts(i + 1);
  }
  Call waiting(*stub_, Ids(kSharesNoPlace, 1));
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  const Got refused = Generate(Ids(kSharesNoPlace, 1));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status.message(), HasSubstr("queue_size is 1"));
  EXPECT_TRUE(RetryAfter(refused.status).has_value());
  EXPECT_EQ(Metric("runahead_admission_rejections_total{reason=\"queue_full\"}"), 1);
  for (const v1::StartJob& start : prefill_[0]->AwaitStarts(2)) {
    prefill_[0]->SendFirstToken(start.job(), 100);
    prefill_[0]->SendDone(start.job());
  }
  for (auto& call : running) EXPECT_TRUE(call->Finish().status.ok());
  const uint64_t last = prefill_[0]->AwaitStarts(3).at(2).job();  // the one that waited had its turn
  prefill_[0]->SendFirstToken(last, 100);
  prefill_[0]->SendDone(last);
  EXPECT_TRUE(waiting.Finish().status.ok());
  EXPECT_EQ(Metric("runahead_queue_depth{priority=\"normal\"}"), 0);
}

TEST_F(WaitingTest, RequestsBeyondTheSessionsWaitInTheSameQueue) {
  Start({.prefill = 1, .queue_size = 1, .max_sessions = 1});
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  Call running(*stub_, Ids(5, 1));
  const uint64_t job = prefill_[0]->AwaitStarts(1).at(0).job();
  Call waiting(*stub_, Ids(5, 1));
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  EXPECT_EQ(Generate(Ids(5, 1)).status.code(), absl::StatusCode::kResourceExhausted);
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = true; });
  prefill_[0]->SendFirstToken(job, 100);
  prefill_[0]->SendDone(job);
  EXPECT_TRUE(running.Finish().status.ok());
  EXPECT_TRUE(waiting.Finish().status.ok());
  EXPECT_EQ(Metric("runahead_queue_depth{priority=\"normal\"}"), 0);
}

TEST_F(WaitingTest, ACancelWhileWaitingLeavesTheQueue) {
  Start({.prefill = 1});
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  Call one(*stub_, Ids(kSharesNoPlace, 1));
  Call two(*stub_, Ids(kSharesNoPlace, 1));
  prefill_[0]->AwaitStarts(2);
  Call waiting(*stub_, Ids(kSharesNoPlace, 1));
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  waiting.Cancel();
  EXPECT_EQ(waiting.Finish().status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 0));
  one.Cancel();
  two.Cancel();
}

}  // namespace
}  // namespace runahead
