// Workers of which one thread stands still while all others run, as when a driver hangs: they answer pings. What has no
// token yet goes on with other workers, what is decoded there ends, and nobody else is harmed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/integration/faults_fixture.h"
#include "tests/testing/frozen_thread.h"

namespace runahead {
namespace {

using testing::FrozenThread;
using ::testing::HasSubstr;
using testing::ThreadNamed;

class HungTest : public FaultsTest {
 protected:
  HungTest() : FaultsTest({"--prefill", "2", "--decode", "2"}) {}

  void SetUp() override {
    // Every worker knows what is usual: all of them have had a request like the one that is to come.
    for (int i = 0; i < 3; ++i) undisturbed_ = cluster_.GenerateEventually(LongAnswer()).ids;
    ASSERT_EQ(undisturbed_.size(), 1000u);
    cluster_.ExpectAllFree();
    const pid_t pid = cluster_.pid("decode-0");
    const absl::Status can = FrozenThread(*ThreadNamed(pid, "control")).status();
    if (!can.ok()) GTEST_SKIP() << "threads cannot be frozen: " << can;
  }
  // An idle router takes the first of a role.
  static v1::GenerateRequest OneToken() {
    v1::GenerateRequest request = RequestOf(SyntheticIds(8, 3), 1);
    request.mutable_experiment()->set_width(1);
    return request;
  }
  std::unique_ptr<FrozenThread> Freeze(const std::string& worker, const std::string& thread) {
    const std::optional<pid_t> tid = ThreadNamed(cluster_.pid(worker), thread);
    EXPECT_TRUE(tid.has_value()) << worker << " has no thread " << thread;
    return tid ? std::make_unique<FrozenThread>(*tid) : nullptr;
  }
  double Suspected(const std::string& role) {
    return cluster_.Metric("router", absl::StrCat("runahead_workers_suspected{role=\"", role, "\"}"));
  }

  std::vector<int32_t> undisturbed_;
};

TEST_F(HungTest, APromptOnAPrefillWorkerThatHangsIsPlannedAnew) {
  for (const char* thread : {"stage", "prefill", "control"}) {
    SCOPED_TRACE(thread);
    std::unique_ptr<FrozenThread> frozen = Freeze("prefill-0", thread);
    Running running(cluster_, OneToken());
    const Answer& answer = running.answer();
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.ids, std::vector<int32_t>(undisturbed_.begin(), undisturbed_.begin() + 1));
    EXPECT_EQ(answer.finished.failovers(), 1);
    EXPECT_EQ(Suspected("prefill"), 1);
    EXPECT_THAT(cluster_.Log(), HasSubstr("prefill-0 was lost: it hangs: it answers, and its"));
    // Nothing new is planned there.
    Running next(cluster_, OneToken());
    EXPECT_EQ(next.answer().finished.failovers(), 0);
    EXPECT_THAT(next.answer().started.plan().workers(), ::testing::ElementsAre("prefill-1"));
    frozen.reset();
    ExpectServiceAgain();
    EXPECT_EQ(Suspected("prefill"), 0);
  }
}

TEST_F(HungTest, ASequenceOnADecodeWorkerThatHangsEndsAndOthersAreDecodedElsewhere) {
  for (const char* thread : {"decode steps", "decode"}) {
    SCOPED_TRACE(thread);
    const auto running = BeginLongAnswer();
    const std::string worker = cluster_.Metric("decode-0", "runahead_kv_leases") == 1 ? "decode-0" : "decode-1";
    std::unique_ptr<FrozenThread> frozen = Freeze(worker, thread);
    // It hangs; or says nothing at all, where it was frozen with a lock in its hands that pongs need.
    ExpectFailed(running->answer(), undisturbed_, absl::StrCat(worker, " was lost: "));
    Running next(cluster_, LongAnswer());
    ExpectUnharmed(next.answer(), undisturbed_);
    frozen.reset();
    EXPECT_TRUE(Eventually([&] { return Suspected("decode") == 0; }));
    EXPECT_TRUE(Eventually(
        [&] { return cluster_.Metric("router", "runahead_workers{role=\"decode\",state=\"ready\"}") == 2; }));
    ExpectServiceAgain();
  }
}

// The sender or the receiver may be the worker that hangs; no other worker would report it.
TEST_F(HungTest, AHandOffWhoseLinksHangEndsAndTheNextGoesElsewhere) {
  for (const std::string worker : {"prefill-0", "decode-0"}) {
    SCOPED_TRACE(worker);
    v1::GenerateRequest request = LongAnswer();
    request.mutable_stop()->set_max_tokens(4);
    std::unique_ptr<FrozenThread> frozen = Freeze(worker, "links");
    Running running(cluster_, request);
    ExpectFailed(running.answer(), undisturbed_, absl::StrCat(worker, " was lost: it hangs"));
    Running next(cluster_, request);
    EXPECT_TRUE(next.answer().status.ok()) << next.answer().status.error_message();
    frozen.reset();
    ExpectServiceAgain();
  }
}

}  // namespace
}  // namespace runahead
