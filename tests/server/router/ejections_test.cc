// Workers that fail by their own fault, behind a whole router.
#include "server/router/ejections.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using testing::Got;

class EjectedTest : public testing::RouterFixture {
 protected:
  v1::GenerateRequest Alone(int max_tokens) {
    v1::GenerateRequest request = Ids(10, max_tokens);
    request.mutable_experiment()->set_width(1);
    return request;
  }
  // How many of so many requests, one after the other, failed.
  int Failed(int requests, int max_tokens) {
    int failed = 0;
    for (int i = 0; i < requests; ++i) failed += !Generate(Alone(max_tokens)).status.ok();
    return failed;
  }
  double Ejected(const std::string& role) { return Metric("runahead_workers_ejected{role=\"" + role + "\"}"); }
};

TEST_F(EjectedTest, APrefillWorkerThatFailsAtOnceStopsAttractingTraffic) {
  Start({.prefill = 2});
  EXPECT_EQ(Ejected("prefill"), 0);
  prefill_[0]->Change([](FakeBehaviour& b) { b.prefill_end = absl::InternalError("the device failed"); });
  EXPECT_LE(Failed(4 * kFailuresInARow, 1), kFailuresInARow);
  EXPECT_EQ(Ejected("prefill"), 1);
  EXPECT_EQ(Ejected("decode"), 0);
}

TEST_F(EjectedTest, ADecodeWorkerWhoseLeasesEndEarlyStopsAttractingTraffic) {
  Start({.decode = 2});
  decode_[0]->Change([](FakeBehaviour& b) {
    b.decode_until = 0;
    b.generate_end = grpc::Status(grpc::StatusCode::INTERNAL, "the step failed");
  });
  EXPECT_LE(Failed(4 * kFailuresInARow, 5), kFailuresInARow);
  EXPECT_EQ(Ejected("decode"), 1);
  EXPECT_EQ(Ejected("prefill"), 0);
}

TEST_F(EjectedTest, TheLastWorkerIsNeverLeftOut) {
  Start({.prefill = 1});
  prefill_[0]->Change([](FakeBehaviour& b) { b.prefill_end = absl::InternalError("the device failed"); });
  EXPECT_EQ(Failed(2 * kFailuresInARow, 1), 2 * kFailuresInARow);
  EXPECT_EQ(Ejected("prefill"), 0);
  prefill_[0]->Change([](FakeBehaviour& b) { b.prefill_end = absl::OkStatus(); });
  EXPECT_EQ(Failed(1, 1), 0);
}

TEST_F(EjectedTest, NobodyIsBlamedForWhatAClientOrANeighbourDid) {
  Start({.prefill = 2});
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  v1::GenerateRequest both = Ids(10, 1);
  both.mutable_experiment()->set_width(2);
  size_t started = 0;
  for (int i = 0; i < 2 * kFailuresInARow; ++i) {
    Call call(*stub_, both);
    const uint64_t job = prefill_[1]->AwaitStarts(++started).back().job();
    call.Cancel();
    prefill_[1]->AwaitCancel(job);
    EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kCancelled);
  }
  for (int i = 0; i < 2 * kFailuresInARow; ++i) {
    Call call(*stub_, both);
    for (int attempt = 0; attempt <= Failover::kMostRetries; ++attempt) {
      const uint64_t job = prefill_[1]->AwaitStarts(++started).back().job();
      prefill_[0]->SendDone(job, absl::UnavailableError("no edge"), v1::JOB_CAUSE_PEER);
    }
    EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(Ejected("prefill"), 0);
}

TEST(Ejections, AWorkerComesBackByItselfAndANewProcessAtOnce) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "tiny");
  testing::FakeClock clock;
  Ejections ejections(2, metrics, clock);
  for (int worker = 0; worker < 2; ++worker) ejections.Ready(worker, "w", 1, true, true);
  const auto fail = [&] {
    for (int i = 0; i < kFailuresInARow; ++i) {
      ejections.Judge(WorkerRole::kPrefill, 1, absl::InternalError("the device failed"));
    }
  };
  fail();
  EXPECT_THAT(ejections.Ejected(WorkerRole::kPrefill), ElementsAre(false, true));
  EXPECT_THAT(ejections.Ejected(WorkerRole::kDecode), Each(false));
  clock.Advance(kFirstEjection);
  EXPECT_THAT(ejections.Ejected(WorkerRole::kPrefill), Each(false));
  fail();
  ejections.NotReady(1);
  EXPECT_THAT(ejections.Ejected(WorkerRole::kPrefill), Each(false));
  ejections.Ready(1, "w", 1, true, true);  // its stream broke, no more
  EXPECT_THAT(ejections.Ejected(WorkerRole::kPrefill), ElementsAre(false, true));
  ejections.NotReady(1);
  ejections.Ready(1, "w", 2, true, true);
  EXPECT_THAT(ejections.Ejected(WorkerRole::kPrefill), Each(false));
}

}  // namespace
}  // namespace runahead
