// Workers that answer pings and get nothing done.
#include "gmock/gmock.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using ::testing::HasSubstr;

class HungWorkerTest : public testing::FaultsFixture {
 protected:
  // The worker says from now on that its thread has computed for so long, where `usual` is usual.
  // `waited` of it for cores.
  static void Says(FakeWorker& worker, const std::string& thread, absl::Duration since, absl::Duration usual,
                   absl::Duration waited = absl::ZeroDuration()) {
    v1::ThreadProgress progress;
    progress.set_name(thread);
    progress.set_computing(since > absl::ZeroDuration());
    progress.set_since_ns(absl::ToInt64Nanoseconds(since));
    progress.set_usual_ns(absl::ToInt64Nanoseconds(usual));
    progress.set_waited_ns(absl::ToInt64Nanoseconds(waited));
    worker.Change([&](FakeBehaviour& b) { b.progress = {progress}; });
  }
};

TEST_F(HungWorkerTest, APrefillWorkerThatHangsIsGivenUpAndItsPromptPlannedAnew) {
  Start();
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  Call call(*stub_, Ids(5, 3));
  prefill_[0]->AwaitStarts(1);
  Says(*prefill_[0], "prefill", absl::Seconds(12), absl::Milliseconds(10));
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_GE(got.finished().failovers(), 1);  // in real time: a busy machine may lose the other one, too
  EXPECT_EQ(Metric("runahead_workers_suspected{role=\"prefill\"}"), 1);
  EXPECT_EQ(Metric("runahead_workers_suspected{role=\"decode\"}"), 0);
  EXPECT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"lost\"}", 1));
  // It still answers, and does not join before it gets something done.
  prefill_[0]->AwaitRouter();
  for (int i = 0; i < 5; ++i) {
    const Got other = Generate(Ids(5, 3));
    ASSERT_TRUE(other.status.ok()) << other.status;
    EXPECT_EQ(other.started().plan().workers(0), "prefill-1");
  }
  Says(*prefill_[0], "prefill", absl::ZeroDuration(), absl::ZeroDuration());
  EXPECT_TRUE(MetricBecomes("runahead_workers_suspected{role=\"prefill\"}", 0));
  ExpectAllFreeAndWorking();
}

TEST_F(HungWorkerTest, WhatADecodeWorkerThatHangsDecodesGoesOnElsewhere) {
  Start({.decode = 2});
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 2; });
  Call call(*stub_, Ids(5, 10));
  decode_[0]->AwaitDecodes(1);
  ::testing::internal::CaptureStderr();
  Says(*decode_[0], "decode", absl::Seconds(6), absl::Milliseconds(10));
  const Got got = call.Finish();
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.ids().size(), 10u);
  EXPECT_GE(got.finished().failovers(), 1);
  EXPECT_EQ(got.finished().plan().decode_worker(), "decode-1");
  EXPECT_THAT(log, HasSubstr("goes on with other workers: decode worker decode-0 was lost: it hangs"));
  EXPECT_THAT(log, HasSubstr("its decode work has got nothing done for 6s"));
}

TEST_F(HungWorkerTest, AWorkerWhoseLayersAreUsuallySlowOrThatWaitsForCoresIsLeftAlone) {
  Start({.prefill = 1});
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  Call call(*stub_, Ids(5, 1));
  const uint64_t job = prefill_[0]->AwaitStarts(1).at(0).job();
  Says(*prefill_[0], "prefill", absl::Seconds(300), absl::Seconds(100));
  absl::SleepFor(absl::Seconds(2));  // what is tested: that answers of so long change nothing
  EXPECT_EQ(Metric("runahead_workers_suspected{role=\"prefill\"}"), 0);
  Says(*prefill_[0], "prefill", absl::Seconds(300), absl::Milliseconds(20), absl::Seconds(296));
  absl::SleepFor(absl::Seconds(2));
  EXPECT_EQ(Metric("runahead_workers_suspected{role=\"prefill\"}"), 0);
  prefill_[0]->SendFirstToken(job, 100);
  EXPECT_TRUE(call.Finish().status.ok());
}

TEST_F(HungWorkerTest, AnotherProcessAtTheAddressIsNotSuspected) {
  Start();
  Says(*prefill_[0], "control", absl::Seconds(6), absl::ZeroDuration());
  EXPECT_TRUE(MetricBecomes("runahead_workers_suspected{role=\"prefill\"}", 1));
  EXPECT_TRUE(MetricBecomes("runahead_workers{role=\"prefill\",state=\"lost\"}", 1));
  Restart(prefill_[0], Able("prefill-0", v1::WORKER_ROLE_PREFILL));
  EXPECT_TRUE(MetricBecomes("runahead_workers_suspected{role=\"prefill\"}", 0));
  ExpectAllFreeAndWorking();
}

}  // namespace
}  // namespace runahead
