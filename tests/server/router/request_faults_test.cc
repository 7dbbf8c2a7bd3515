// Requests that end badly: clear statuses, nothing left behind, the next request works.
#include <future>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "tests/server/router/faults_fixture.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::Got;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using RequestFaultsTest = testing::FaultsFixture;

TEST_F(RequestFaultsTest, ACancelInMidPrefillReachesAllMembersAndFreesTheLease) {
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

TEST_F(RequestFaultsTest, ACancelInMidDecodeStopsTheSequence) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 5; });
  Call call(*stub_, Chain());
  decode_[0]->AwaitDecodes(1);
  EXPECT_EQ(decode_[0]->leases(), 1u);
  call.Cancel();
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kCancelled);
  ExpectAllFreeAndWorking();
}

TEST_F(RequestFaultsTest, ADeadlineInMidPrefill) {
  Start();
  HoldPrefill(false, false);
  std::vector<v1::StartJob> starts;
  absl::Duration timeout = absl::Milliseconds(150);
  while (starts.empty() && timeout < testing::kInVain) {  // until one came early enough to be started
    timeout *= 2;
    EXPECT_EQ(Call(*stub_, Chain(), timeout).Finish().status.code(), absl::StatusCode::kDeadlineExceeded);
    starts = prefill_[0]->AwaitStarts(0);
  }
  ASSERT_FALSE(starts.empty());
  EXPECT_GT(starts.back().deadline_ms(), 0);
  // Remaining time; the transport and the router each round up.
  EXPECT_LE(starts.back().deadline_ms(), absl::ToInt64Milliseconds(timeout) + 10);
  prefill_[0]->AwaitCancel(starts.back().job());
  ExpectAllFreeAndWorking();
}

TEST_F(RequestFaultsTest, ADeadlineInMidDecode) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 2; });
  Call call(*stub_, Chain(), absl::Milliseconds(300));
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kDeadlineExceeded);
  ExpectAllFreeAndWorking();
}

class DeadlineSlackTest : public testing::FaultsFixture {
 protected:
  testing::FakeClock clock_;
};

// The client's comes before the deadline has passed here: by the way of the request, and by gRPC's rounding.
TEST_F(DeadlineSlackTest, ACancelShortlyBeforeTheDeadlineIsTheDeadlinesAndAnEarlierOneTheClients) {
  constexpr absl::Duration kDeadline = absl::Hours(1);
  Start({.stall_timeout = 2 * kDeadline, .clock = &clock_});
  HoldPrefill(false, false);
  size_t starts = 0;
  const std::pair<absl::Duration, const char*> kCases[] = {{absl::Minutes(1), "CANCELLED"},
                                                           {absl::Milliseconds(50), "DEADLINE_EXCEEDED"}};
  for (const auto& [before, code] : kCases) {
    SCOPED_TRACE(code);
    const std::string ended = absl::StrCat("runahead_requests_total{code=\"", code, "\",model=\"tiny\"}");
    EXPECT_EQ(Metric(ended), 0);
    Call call(*stub_, Chain(), kDeadline);
    const uint64_t job = prefill_[0]->AwaitStarts(++starts).back().job();
    clock_.Advance(kDeadline - before);
    call.Cancel();
    EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kCancelled);
    prefill_[0]->AwaitCancel(job);
    EXPECT_TRUE(MetricBecomes(ended, 1));
  }
}

TEST_F(RequestFaultsTest, AMembersFailureBeforeTheFirstTokenIsBorneOnce) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Chain());
  prefill_[0]->SendDone(Job(), absl::InternalError("the device failed"));
  prefill_[1]->AwaitCancel(Job());
  const uint64_t second = prefill_[0]->AwaitStarts(2).at(1).job();
  prefill_[0]->SendDone(second, absl::InternalError("the device failed again"));
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(got.status.message(), HasSubstr("prefill-0: the device failed again"));
  prefill_[1]->AwaitCancel(second);
  ExpectAllFreeAndWorking();
  EXPECT_EQ(Metric("runahead_failovers_total{cause=\"worker_failed\",stage=\"prefill\"}"), 1);
}

TEST_F(RequestFaultsTest, AChainThatEndsWithoutATokenIsAnError) {
  Start();
  HoldPrefill(false, true);
  const Got got = Generate(Chain());
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(got.status.message(), HasSubstr("without a token"));
  ExpectAllFreeAndWorking();
}

TEST_F(RequestFaultsTest, AFailureThatComesAfterTheHandOffHarmsNobody) {
  Start();
  HoldPrefill(true, false);
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 5; });
  Call call(*stub_, Chain(10));
  decode_[0]->AwaitDecodes(1);                                                   // tokens flow: the KV was complete
  for (int tokens = 0; tokens < 2;) tokens += call.Read()->tokens().ids_size();  // several may come in one message
  prefill_[0]->SendDone(Job(), absl::UnavailableError("too late to matter"));
  prefill_[1]->AwaitCancel(Job());
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 100; });
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids().size(), 10u);
  ExpectAllFreeAndWorking();
}

TEST_F(RequestFaultsTest, ADecodeWorkerThatEndsTooEarlyTwiceIsAnError) {
  Start();
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = 3;
    b.generate_end = grpc::Status::OK;
  });
  const Got got = Generate(Chain());
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable) << "with how to go on";
  EXPECT_THAT(got.status.message(), HasSubstr("ended after 4 of 50 tokens"));
  ExpectAllFreeAndWorking();
}

TEST_F(RequestFaultsTest, AClientThatTakesNothingIsCancelled) {
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
  decode_[0]->AwaitLeases(0);  // given back although the client reads nothing more
  EXPECT_TRUE(testing::Await("the call is cut off", [&] { return server_->gate().inside() == 0; }));
  EXPECT_TRUE(MetricBecomes("runahead_requests_in_flight", 0));
  EXPECT_FALSE(call.Finish().status.ok());
}

TEST_F(RequestFaultsTest, DrainLetsRequestsEndAndRefusesNewOnes) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Ids(5, 1));
  const uint64_t job = Job();
  auto drained = std::async(std::launch::async, [this] { return server_->Drain(absl::Seconds(30)); });
  EXPECT_TRUE(testing::Await("the drain has closed the gate", [&] { return server_->gate().closed(); }));
  const Got refused = Generate(Ids(5, 1));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  prefill_[0]->SendFirstToken(job, 100);
  EXPECT_TRUE(call.Finish().status.ok());
  EXPECT_TRUE(drained.get());
}

TEST_F(RequestFaultsTest, RequestsThatOutliveTheDrainAreToldThatTheRouterStopped) {
  Start({.max_sessions = 2});
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 5; });
  Call decoding(*stub_, Ids(5, 50));
  decode_[0]->AwaitDecodes(1);
  HoldPrefill(false, false);
  Call computing(*stub_, Ids(5, 50));
  EXPECT_TRUE(computing.Read()->has_started());
  Call queued(*stub_, Ids(5, 50));
  ASSERT_TRUE(testing::Await("all three calls are in", [&] { return server_->gate().inside() == 3; }));
  const bool all_ended = server_->Drain(absl::ZeroDuration(), [this] {
    service_->CutOff(absl::UnavailableError("this router stopped; send the request again"));
  });
  EXPECT_FALSE(all_ended);
  for (Call* call : {&decoding, &computing, &queued}) {
    const absl::Status status = call->Finish().status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("this router stopped; send the request again"));
    EXPECT_EQ(absl::StrContains(status.message(), "as output_ids"), call == &decoding) << status;
    EXPECT_TRUE(RetryAfter(status).has_value());
  }
  decode_[0]->AwaitLeases(0);
  EXPECT_EQ(Metric("runahead_requests_total{code=\"UNAVAILABLE\",model=\"tiny\"}"), 3);
  EXPECT_EQ(Metric("runahead_requests_total{code=\"CANCELLED\",model=\"tiny\"}"), 0);
}

}  // namespace
}  // namespace runahead
