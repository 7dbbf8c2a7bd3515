// Requests that end badly, and workers that come and go: clear statuses, nothing left behind, the next request works.
#include <future>
#include <thread>

#include "absl/algorithm/container.h"
#include "gmock/gmock.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using ::testing::HasSubstr;

class FaultsTest : public testing::RouterFixture {
 protected:
  // A prompt on both prefill workers.
  v1::GenerateRequest Chain(int max_tokens = 50) {
    v1::GenerateRequest request = Ids(10, max_tokens);
    request.mutable_experiment()->set_width(2);
    return request;
  }
  void HoldPrefill(bool first_token, bool done) {
    for (auto& worker : prefill_) {
      worker->Change([&](FakeBehaviour& b) {
        b.first_token = first_token;
        b.done = done;
      });
    }
  }
  uint64_t Job() { return prefill_[0]->AwaitStarts(1).at(0).job(); }
  // Everything that a request may hold is free again, and requests are answered.
  void ExpectAllFreeAndWorking(int prefill = 2) {
    for (auto* workers : {&prefill_, &decode_}) {
      for (auto& worker : *workers) worker->AwaitRouter();  // and so the stream before it, if any, is known to be over
    }
    for (auto& worker : decode_) worker->AwaitLeases(0);
    AwaitReady(prefill, static_cast<int>(decode_.size()));
    HoldPrefill(true, true);
    for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b = FakeBehaviour(); });
    const Got got = Generate(Chain(3));
    EXPECT_TRUE(got.status.ok()) << got.status;
    for (auto& worker : decode_) worker->AwaitLeases(0);
  }
  // The worker is killed and comes back at its address as a new incarnation.
  void Restart(std::unique_ptr<FakeWorker>& worker, v1::Capabilities able) {
    const std::string address = worker->address();
    worker.reset();
    worker = std::make_unique<FakeWorker>(std::move(able), address);
  }
};

TEST_F(FaultsTest, ACancelInMidPrefillReachesAllMembersAndFreesTheLease) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Chain());
  EXPECT_TRUE(call.Read()->has_started());
  prefill_[1]->AwaitStarts(1);
  EXPECT_EQ(decode_[0]->leases(), 1u);
  call.Cancel();
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kCancelled);
  for (auto& worker : prefill_) worker->AwaitCancel(Job());
  ExpectAllFreeAndWorking();
  EXPECT_EQ(Metric("runahead_cancel_to_free_seconds_count"), 1);
}

TEST_F(FaultsTest, ACancelInMidDecodeStopsTheSequence) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 5; });
  Call call(*stub_, Chain());
  decode_[0]->AwaitDecodes(1);
  EXPECT_EQ(decode_[0]->leases(), 1u);
  call.Cancel();
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kCancelled);
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, ADeadlineInMidPrefill) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Chain(), absl::Milliseconds(300));
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kDeadlineExceeded);
  const v1::StartJob start = prefill_[0]->AwaitStarts(1).at(0);
  EXPECT_GT(start.deadline_ms(), 0);
  EXPECT_LE(start.deadline_ms(), 310);  // remaining time; the transport and the router each round up
  prefill_[1]->AwaitCancel(start.job());
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, ADeadlineInMidDecode) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 2; });
  Call call(*stub_, Chain(), absl::Milliseconds(300));
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kDeadlineExceeded);
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, AMembersFailureBeforeTheFirstToken) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Chain());
  prefill_[0]->SendDone(Job(), absl::InternalError("the device failed"));
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(got.status.message(), HasSubstr("prefill-0: the device failed"));
  prefill_[1]->AwaitCancel(Job());
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, AChainThatEndsWithoutATokenIsAnError) {
  Start();
  HoldPrefill(false, true);
  const Got got = Generate(Chain());
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(got.status.message(), HasSubstr("without a token"));
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, AHandOffThatFailsAfterTheFirstTokenEndsTheRequest) {
  Start();
  HoldPrefill(true, false);
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 0; });  // the KV never becomes complete
  Call call(*stub_, Chain());
  EXPECT_TRUE(call.Read()->has_started());
  EXPECT_TRUE(call.Read()->has_tokens());
  prefill_[0]->SendDone(Job(), absl::DataLossError("three times corrupt"));
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("three times corrupt"));
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, AFailureThatComesAfterTheHandOffHarmsNobody) {
  Start();
  HoldPrefill(true, false);
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 5; });
  Call call(*stub_, Chain(10));
  decode_[0]->AwaitDecodes(1);  // tokens flow: the KV was complete
  while (call.Read()->tokens().index() < 1) {
  }
  prefill_[0]->SendDone(Job(), absl::UnavailableError("too late to matter"));
  prefill_[1]->AwaitCancel(Job());
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 100; });
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids().size(), 10u);
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, APrefillWorkerDiesInMidPrefillAndComesBack) {
  Start();
  HoldPrefill(false, false);
  const uint64_t former =
      prefill_[0]->AwaitLine([](const v1::FormLine& line) { return line.has_successor(); }).successor().incarnation();
  Call call(*stub_, Chain());
  prefill_[1]->AwaitStarts(1);
  Restart(prefill_[1], Able("prefill-1", v1::WORKER_ROLE_PREFILL));
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("prefill worker prefill-1 was lost"));
  EXPECT_TRUE(RetryAfter(got.status).has_value());
  prefill_[0]->AwaitCancel(Job());
  // All who may have links to it are told, decode workers too.
  const auto told = [former](const v1::FormLine& line) {
    return absl::c_any_of(line.lost(), [&](const v1::WorkerLife& lost) { return lost.incarnation() == former; });
  };
  prefill_[0]->AwaitLine(told);
  decode_[0]->AwaitLine(told);
  // The neighbour hears of the new incarnation, and the chain works again.
  const uint64_t incarnation =
      prefill_[0]->AwaitLine([](const v1::FormLine& line) { return line.has_successor(); }).successor().incarnation();
  EXPECT_NE(incarnation, 0u);
  prefill_[1]->AwaitLine([](const v1::FormLine& line) { return line.has_predecessor(); });
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, AnEdgeThatBrokeIsLeftOutAndUsedAgainInItsNextGeneration) {
  Start();
  const auto has_successor = [](const v1::FormLine& line) { return line.has_successor(); };
  const v1::PeerAddress successor = prefill_[0]->AwaitLine(has_successor).successor();
  EXPECT_EQ(successor.generation(), 1u);
  v1::PathState state;
  state.mutable_peer()->set_incarnation(successor.incarnation());
  state.mutable_peer()->set_epoch(successor.epoch());
  state.set_generation(1);
  state.set_condition(v1::PATH_CONDITION_BROKEN);
  state.set_message("cut");
  prefill_[0]->SendPath(state);
  // Both ends are told of the next generation; until both are up no chain crosses the edge.
  const auto remade = [](const v1::FormLine& line) {
    return line.successor().generation() == 2 || line.predecessor().generation() == 2;
  };
  prefill_[0]->AwaitLine(remade);
  const v1::PeerAddress predecessor = prefill_[1]->AwaitLine(remade).predecessor();
  ASSERT_TRUE(MetricBecomes("runahead_broken_paths{kind=\"edge\"}", 1));
  const Got refused = Generate(Chain());
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.status.message(), HasSubstr("edge to the next is broken"));
  EXPECT_TRUE(Generate(Ids(40, 5)).status.ok()) << "one worker takes it";
  state.set_generation(2);
  state.set_condition(v1::PATH_CONDITION_UP);
  prefill_[0]->SendPath(state);
  state.mutable_peer()->set_incarnation(predecessor.incarnation());
  state.mutable_peer()->set_epoch(predecessor.epoch());
  prefill_[1]->SendPath(state);
  ASSERT_TRUE(MetricBecomes("runahead_broken_paths{kind=\"edge\"}", 0)) << "both reports were taken";
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, ADecodeWorkerThatAMemberCannotReachIsNotTaken) {
  Start({.decode = 2});
  const auto none_reaches = [this](size_t decode, v1::PathCondition condition) {
    for (auto& worker : prefill_) {
      v1::PathState state;
      state.mutable_peer()->set_incarnation(decode_[decode]->incarnation());
      state.set_condition(condition);
      worker->SendPath(state);
    }
  };
  none_reaches(0, v1::PATH_CONDITION_BROKEN);
  ASSERT_TRUE(MetricBecomes("runahead_broken_paths{kind=\"handoff\"}", 2));
  for (int i = 0; i < 4; ++i) {
    const Got got = Generate(Ids(40, 5));
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.started().plan().decode_worker(), "decode-1");
  }
  none_reaches(0, v1::PATH_CONDITION_UP);
  ASSERT_TRUE(MetricBecomes("runahead_broken_paths{kind=\"handoff\"}", 0));
  EXPECT_EQ(Generate(Ids(40, 5)).started().plan().decode_worker(), "decode-0");
}

TEST_F(FaultsTest, ADeadWorkerSplitsTheLine) {
  Start({.prefill = 3});
  prefill_[1].reset();
  AwaitReady(2, 1);
  prefill_[0]->AwaitLine([](const v1::FormLine& line) { return !line.has_successor(); });
  prefill_[2]->AwaitLine([](const v1::FormLine& line) { return !line.has_predecessor(); });
  const Got single = Generate(Ids(1000, 2));
  EXPECT_TRUE(single.status.ok()) << single.status;
  EXPECT_EQ(single.started().plan().workers_size(), 1);
  const Got wide = Generate(Chain());
  EXPECT_EQ(wide.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(wide.status.message(), HasSubstr("no 2 prefill workers that stand side by side"));
  prefill_.erase(prefill_.begin() + 1);
}

TEST_F(FaultsTest, ADecodeWorkerDiesWhileThePromptIsComputed) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Chain());
  const uint64_t job = Job();
  Restart(decode_[0], Able("decode-0", v1::WORKER_ROLE_DECODE));
  prefill_[1]->SendFirstToken(job, 100);
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("decode-0"));
  prefill_[0]->AwaitCancel(job);
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, ADecodeWorkerDiesInMidDecode) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 3; });
  Call call(*stub_, Chain());
  decode_[0]->AwaitDecodes(1);
  Restart(decode_[0], Able("decode-0", v1::WORKER_ROLE_DECODE));
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RetryAfter(got.status).has_value());
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, ADecodeWorkerThatEndsTooEarlyIsAnError) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = 3;
    b.generate_end = grpc::Status::OK;
  });
  const Got got = Generate(Chain());
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(got.status.message(), HasSubstr("ended after 4 of 50 tokens"));
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, ABrokenControlStreamIsALostWorkerAndIsJoinedAgain) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Chain());
  prefill_[0]->AwaitStarts(1);
  prefill_[0]->DropStream();
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kUnavailable);
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, WithoutWorkersItSaysWhichAreMissing) {
  Start({.prefill = 1});
  prefill_.clear();
  AwaitReady(0, 1);
  const Got no_prefill = Generate(Ids(5, 5));
  EXPECT_EQ(no_prefill.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(no_prefill.status.message(), HasSubstr("no prefill worker is ready: 127.0.0.1:"));
  EXPECT_TRUE(RetryAfter(no_prefill.status).has_value());
  EXPECT_EQ(Metric("runahead_admission_rejections_total{reason=\"no_workers\"}"), 1);
  EXPECT_EQ(Metric("runahead_workers{role=\"prefill\",state=\"lost\"}"), 1);
}

TEST_F(FaultsTest, AWorkerThatDoesNotAgreeIsRefusedByName) {
  int count = 0;
  Start({.able = [&count](v1::Capabilities& able) {
    if (count++ == 1) able.set_model_fingerprint("another");
  }});
  AwaitReady(1, 1);
  ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"refused\"}", 1));
  const Got got = Generate(Chain());
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("worker prefill-1 does not agree: model_fingerprint is another"));
  EXPECT_TRUE(Generate(Ids(5, 2)).status.ok());
}

TEST_F(FaultsTest, TheConfiguredDtypeIsWantedWhateverMostWorkersComputeIn) {
  int count = 0;
  Start({.prefill = 3, .dtype = "bf16", .able = [&count](v1::Capabilities& able) {
           if (count++ % 3 == 0) able.set_compute_dtype("bf16");
         }});
  AwaitReady(1, 1);
  ASSERT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"refused\"}", 2));
  EXPECT_TRUE(Generate(Ids(5, 2)).status.ok());
  EXPECT_EQ(fleet_->capabilities().compute_dtype(), "bf16");
}

TEST_F(FaultsTest, AFullDecodeWorkerIsPassedOver) {
  Start({.decode = 2});
  decode_[0]->Change([](FakeBehaviour& b) { b.reserve = false; });
  const Got got = Generate(Chain(3));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.started().plan().decode_worker(), "decode-1");
}

TEST_F(FaultsTest, WaitsForMemoryWhenAllAreFull) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) { b.reserve = false; });
  Call call(*stub_, Chain(3));
  decode_[0]->AwaitReservations(2);  // it came back
  decode_[0]->Change([](FakeBehaviour& b) { b.reserve = true; });
  EXPECT_TRUE(call.Finish().status.ok());
  ExpectAllFreeAndWorking();
}

TEST_F(FaultsTest, WhatNoEmptyStoreHoldsIsRefusedAtOnce) {
  Start({.able = [](v1::Capabilities& able) { able.set_kv_capacity_tokens(100); }});
  AwaitReady(2, 1);
  const Got got = Generate(Ids(60, 50));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(got.status.message(), HasSubstr("110 tokens"));
  EXPECT_THAT(got.status.message(), HasSubstr("holds 100"));
  EXPECT_TRUE(Generate(Ids(60, 40)).status.ok());
}

TEST_F(FaultsTest, WhatOnlyAWorkerThatRestartsCouldHoldIsUnavailable) {
  Start({.decode = 2, .able = [](v1::Capabilities& able) {
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

TEST_F(FaultsTest, AFullQueueSaysWhenToTryAgain) {
  Start({.prefill = 1, .queue_size = 1});
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  std::vector<std::unique_ptr<Call>> running;
  for (int i = 0; i < 2; ++i) {
    running.push_back(std::make_unique<Call>(*stub_, Ids(5, 1)));
    prefill_[0]->AwaitStarts(i + 1);
  }
  Call waiting(*stub_, Ids(5, 1));
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  const Got refused = Generate(Ids(5, 1));
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

TEST_F(FaultsTest, RequestsBeyondTheSessionsWaitInTheSameQueue) {
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

TEST_F(FaultsTest, ACancelWhileWaitingLeavesTheQueue) {
  Start({.prefill = 1});
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  Call one(*stub_, Ids(5, 1));
  Call two(*stub_, Ids(5, 1));
  prefill_[0]->AwaitStarts(2);
  Call waiting(*stub_, Ids(5, 1));
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  waiting.Cancel();
  EXPECT_EQ(waiting.Finish().status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 0));
  one.Cancel();
  two.Cancel();
}

TEST_F(FaultsTest, AClientThatTakesNothingIsCancelled) {
  Start({.stall_timeout = absl::Milliseconds(200)});
  for (auto* workers : {&prefill_, &decode_}) {
    for (auto& worker : *workers) {
      worker->Change([](FakeBehaviour& b) { b.logprobs = 20; });
    }
  }
  grpc::ChannelArguments narrow;  // a small window, so that not everything fits into buffers on the way
  narrow.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  narrow.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub =
      v1::Inference::NewStub(grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), narrow));
  Call call(*stub, Ids(5, 4000));
  EXPECT_TRUE(call.Read()->has_started());
  decode_[0]->AwaitDecodes(1);
  decode_[0]->AwaitLeases(0);                                       // given back although the client reads nothing more
  while (server_->gate().inside() != 0) std::this_thread::yield();  // cut off, or the call would never end
  EXPECT_FALSE(call.Finish().status.ok());
}

TEST_F(FaultsTest, DrainLetsRequestsEndAndRefusesNewOnes) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Ids(5, 1));
  const uint64_t job = Job();
  auto drained = std::async(std::launch::async, [this] { return server_->Drain(absl::Seconds(30)); });
  while (!server_->gate().closed()) std::this_thread::yield();
  const Got refused = Generate(Ids(5, 1));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  prefill_[0]->SendFirstToken(job, 100);
  EXPECT_TRUE(call.Finish().status.ok());
  EXPECT_TRUE(drained.get());
}

TEST_F(FaultsTest, RequestsThatOutliveTheDrainAreToldThatTheRouterStopped) {
  Start({.max_sessions = 2});
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 5; });
  Call decoding(*stub_, Ids(5, 50));
  decode_[0]->AwaitDecodes(1);
  HoldPrefill(false, false);
  Call computing(*stub_, Ids(5, 50));
  EXPECT_TRUE(computing.Read()->has_started());
  Call queued(*stub_, Ids(5, 50));
  while (server_->gate().inside() != 3) std::this_thread::yield();
  const bool all_ended = server_->Drain(absl::ZeroDuration(), [this] {
    service_->CutOff(absl::UnavailableError("this router stopped; send the request again"));
  });
  EXPECT_FALSE(all_ended);
  for (Call* call : {&decoding, &computing, &queued}) {
    const absl::Status status = call->Finish().status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(status.message(), "this router stopped; send the request again");
    EXPECT_TRUE(RetryAfter(status).has_value());
  }
  decode_[0]->AwaitLeases(0);
  EXPECT_EQ(Metric("runahead_requests_total{code=\"UNAVAILABLE\",model=\"tiny\"}"), 3);
  EXPECT_EQ(Metric("runahead_requests_total{code=\"CANCELLED\",model=\"tiny\"}"), 0);
}

}  // namespace
}  // namespace runahead
