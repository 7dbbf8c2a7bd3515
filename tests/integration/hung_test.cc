// Workers of which one thread stands still while all others run, as when a driver hangs: they answer pings. What has to
// do with them goes on with other workers, and nobody else is harmed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/faults_fixture.h"
#include "tests/integration/hung_threads.h"
#include "tests/testing/frozen_thread.h"

namespace runahead {
namespace {

using testing::FrozenThread;
using ::testing::HasSubstr;
using testing::ThreadNamed;

// Requests that name a width take a chain and a hand-off, past what is known: where those hang they are asked.
class HungTest : public FaultsTest {
 protected:
  HungTest() : FaultsTest({"--prefill", "2", "--decode", "2"}) {}

  void SetUp() override {
    // Every worker knows what is usual: all of them have had a request like the one that is to come. Of two at once
    // each has its own workers.
    ASSERT_TRUE(Eventually([&] {
      Running first(cluster_, LongAnswer()), second(cluster_, LongAnswer());
      undisturbed_ = first.answer().ids;
      return first.answer().started.plan().decode_worker() != second.answer().started.plan().decode_worker();
    }));
    ASSERT_EQ(undisturbed_.size(), 1000u);
    cluster_.ExpectAllFree();
    SkipWhereNothingFreezes();
  }
  void SkipWhereNothingFreezes() {
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
  // Afterwards the chain's workers have connections to decode-0. An idle router takes it, but what it knows of slots is
  // up to half a second old: right after another request it may take the other.
  void ExpectDecodedByTheFirst(const v1::GenerateRequest& request) {
    EXPECT_TRUE(
        Eventually([&] { return cluster_.GenerateEventually(request).started.plan().decode_worker() == "decode-0"; }));
  }
  std::unique_ptr<FrozenThread> Freeze(const std::string& worker, const std::string& thread) {
    const std::optional<pid_t> tid = ThreadNamed(cluster_.pid(worker), thread);
    EXPECT_TRUE(tid.has_value()) << worker << " has no thread " << thread;
    return tid ? std::make_unique<FrozenThread>(*tid) : nullptr;
  }
  // The sender or the receiver may be the worker that hangs; no other worker would report it.
  void ExpectAHandOffThatHangsIsDoneAnew(const FrozenOf& hangs) {
    const std::string worker(hangs.worker), thread(hangs.thread);
    SCOPED_TRACE(absl::StrCat(thread, " of ", worker));
    v1::GenerateRequest request = LongAnswer();
    request.mutable_stop()->set_max_tokens(4);
    ExpectDecodedByTheFirst(request);  // else who connects to it finds out first, in other words
    std::unique_ptr<FrozenThread> frozen = Freeze(worker, thread);
    std::unique_ptr<Running> running;  // the other decode worker may have its turn first
    EXPECT_TRUE(Eventually([&] {
      running = std::make_unique<Running>(cluster_, request);
      return running->answer().finished.failovers() > 0;
    }));
    ExpectUnharmed(running->answer(), {undisturbed_.begin(), undisturbed_.begin() + 4});
    EXPECT_THAT(cluster_.Log(), HasSubstr(absl::StrCat(worker, " was lost: ")));
    Running next(cluster_, request);
    EXPECT_TRUE(next.answer().status.ok()) << next.answer().status.error_message();
    frozen.reset();
    ExpectServiceAgain();
  }
  double Suspected(const std::string& role) {
    return cluster_.Metric("router", absl::StrCat("runahead_workers_suspected{role=\"", role, "\"}"));
  }

  std::vector<int32_t> undisturbed_;
};

TEST_F(HungTest, APromptOnAPrefillWorkerThatHangsIsPlannedAnew) {
  for (const char* thread : kFrozenInPrefill) {
    SCOPED_TRACE(thread);
    std::unique_ptr<FrozenThread> frozen = Freeze("prefill-0", thread);
    Running running(cluster_, OneToken());
    const Answer& answer = running.answer();
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.ids, std::vector<int32_t>(undisturbed_.begin(), undisturbed_.begin() + 1));
    EXPECT_GE(answer.finished.failovers(), 1);
    // It hangs; or says nothing at all, where it was frozen with a lock in its hands that pongs need.
    EXPECT_THAT(cluster_.Log(), HasSubstr("prefill-0 was lost: "));
    // Nothing new is planned there.
    Running next(cluster_, OneToken());
    EXPECT_THAT(next.answer().started.plan().workers(), ::testing::ElementsAre("prefill-1"));
    frozen.reset();
    ExpectServiceAgain();
    EXPECT_EQ(Suspected("prefill"), 0);
  }
}

TEST_F(HungTest, ASequenceOnADecodeWorkerThatHangsGoesOnElsewhereAndSoDoOthers) {
  v1::GenerateRequest request = KnownAnswer();
  request.mutable_stop()->set_max_tokens(1000);
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(Uncached(request)).ids;
  ASSERT_EQ(undisturbed.size(), 1000u);
  for (const char* thread : kFrozenInDecode) {
    SCOPED_TRACE(thread);
    const auto running = BeginKnownAnswer(request);
    const std::string worker = cluster_.Metric("decode-0", "runahead_kv_leases") == 1 ? "decode-0" : "decode-1";
    std::unique_ptr<FrozenThread> frozen = Freeze(worker, thread);
    ExpectUnharmed(running->answer(), undisturbed);
    EXPECT_EQ(running->answer().started.plan().known_tokens(), 99);  // what it began with
    EXPECT_GE(running->answer().finished.failovers(), 1);
    // It hangs; or says nothing at all, where it was frozen with a lock in its hands that pongs need.
    EXPECT_THAT(cluster_.Log(), HasSubstr(absl::StrCat(worker, " was lost: ")));
    Running next(cluster_, request);  // the other decode worker knows it from before
    ExpectUnharmed(next.answer(), undisturbed);
    EXPECT_EQ(next.answer().finished.usage().cached_prompt_tokens(), 99);
    frozen.reset();
    EXPECT_TRUE(Eventually([&] { return Suspected("decode") == 0; }));
    EXPECT_TRUE(Eventually(
        [&] { return cluster_.Metric("router", "runahead_workers{role=\"decode\",state=\"ready\"}") == 2; }));
    ExpectServiceAgain();
  }
}

TEST_F(HungTest, AHandOffThatHangsIsDoneAnewAndTheNextGoesElsewhere) {
  for (const FrozenOf& hangs : kFrozenInHandoff) ExpectAHandOffThatHangsIsDoneAnew(hangs);
}

TEST_F(HungTest, AChainWhoseLinksHangIsPlannedAnew) {
  for (const FrozenOf& hangs : kFrozenInChain) {
    const std::string worker(hangs.worker), thread(hangs.thread);
    SCOPED_TRACE(absl::StrCat(thread, " of ", worker));
    std::unique_ptr<FrozenThread> frozen = Freeze(worker, thread);
    Running running(cluster_, LongPrompt());
    EXPECT_TRUE(Eventually(
        [&] { return cluster_.Metric("router", "runahead_workers{role=\"prefill\",state=\"ready\"}") == 1; }));
    frozen.reset();  // a chain of two needs it
    EXPECT_TRUE(running.answer().status.ok()) << running.answer().status.error_message();
    EXPECT_GE(running.answer().finished.failovers(), 1);
    ExpectServiceAgain();
  }
}

TEST_F(HungTest, EveryThreadIsFrozenByATestOrMayStandStill) {
  for (const auto& [name, pid] : cluster_.pids()) {
    SCOPED_TRACE(name);
    ExpectKnownThreads(pid);
  }
}

// Nobody has had a request yet.
class NewAndHungTest : public HungTest {
 protected:
  void SetUp() override { SkipWhereNothingFreezes(); }
};

TEST_F(NewAndHungTest, TheFirstPromptOfAPrefillWorkerThatHangsIsPlannedAnew) {
  std::unique_ptr<FrozenThread> frozen = Freeze("prefill-0", "prefill");
  Running running(cluster_, OneToken());
  EXPECT_TRUE(running.answer().status.ok()) << running.answer().status.error_message();
  EXPECT_GE(running.answer().finished.failovers(), 1);
  // It hangs; or says nothing at all, where it was frozen with a lock in its hands that pongs need.
  EXPECT_THAT(cluster_.Log(), HasSubstr("prefill-0 was lost: "));
}

// Its first step hangs, and another worker decodes it, and what comes then.
TEST_F(NewAndHungTest, TheFirstSequenceOfADecodeWorkerThatHangsGoesOnElsewhere) {
  std::unique_ptr<FrozenThread> frozen = Freeze("decode-0", "decode");
  const v1::GenerateRequest request = RequestOf(SyntheticIds(40, 3), 4);
  Running running(cluster_, request);
  EXPECT_TRUE(running.answer().status.ok()) << running.answer().status.error_message();
  EXPECT_GE(running.answer().finished.failovers(), 1);
  EXPECT_THAT(cluster_.Log(), HasSubstr("decode-0 was lost: "));
  Running next(cluster_, request);  // the other worker knows it from before
  ExpectUnharmed(next.answer(), running.answer().ids);
  EXPECT_EQ(next.answer().finished.usage().cached_prompt_tokens(), 39);
}

}  // namespace
}  // namespace runahead
