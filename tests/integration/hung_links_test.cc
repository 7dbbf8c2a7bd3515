// As hung_test, for threads that move bytes over links of other kinds: between a device and the host, between
// workers that have just begun, and into a process's own store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/faults_fixture.h"
#include "tests/integration/hung_threads.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/frozen_thread.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::FrozenThread;
using testing::MetricOf;
using testing::ServingProcess;
using testing::ThreadNamed;

// A decode worker that brings KV over a link, with every lane at work.
class HungKvprTest : public ::testing::Test {
 protected:
  const std::string model_ = WriteSynthetic({.kv_heads = 4}, "hung_kvpr");
  LocalCluster cluster_{model_,
                        {"--prefill", "1", "--decode", "1", "--threads", "2", "--dtype", "f32", "--emulated-link-gbps",
                         "20", "--kv-device-budget", "3MiB", "--recompute", "256", "--host-lane", "256"}};
};

TEST_F(HungKvprTest, ASequenceWhoseLinkHangsGoesOnOnceItDoesNot) {
  const v1::GenerateRequest request = RequestOf(SyntheticIds(1400, 4), 300);
  const pid_t decode = cluster_.pid("decode-0");
  const Answer undisturbed = cluster_.GenerateEventually(Uncached(request));
  ASSERT_EQ(undisturbed.ids.size(), 300u);
  EXPECT_EQ(cluster_.GenerateEventually(request).ids, undisturbed.ids);
  for (const auto& [name, pid] : cluster_.pids()) ExpectKnownThreads(pid);
  for (const char* thread : kFrozenInKvpr) {
    SCOPED_TRACE(thread);
    Running running(cluster_, request);
    ASSERT_TRUE(Eventually([&] { return running.tokens() >= 3; }));
    const std::optional<pid_t> tid = ThreadNamed(decode, thread);
    ASSERT_TRUE(tid.has_value());
    auto frozen = std::make_unique<FrozenThread>(*tid);
    if (!frozen->status().ok()) GTEST_SKIP() << "threads cannot be frozen: " << frozen->status();
    EXPECT_TRUE(Eventually(
        [&] { return cluster_.Metric("router", "runahead_workers{role=\"decode\",state=\"ready\"}") == 0; }));
    frozen.reset();  // there is no other
    FaultsCluster::ExpectUnharmed(running.answer(), undisturbed.ids);
    EXPECT_EQ(running.answer().started.plan().known_tokens(), 1399);  // what it began with
    EXPECT_EQ(cluster_.GenerateEventually(request).ids, undisturbed.ids);
    EXPECT_EQ(cluster_.pid("decode-0"), decode);
  }
}

class HungProcessTest : public ::testing::Test {
 protected:
  std::unique_ptr<ServingProcess> Worker(const std::string& role, const std::string& name,
                                         const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {RUNAHEAD_WORKER, "--role", role,          "--name", name, "--threads", "1",
                                        "--model",       model_,   "--kv-memory", "64MiB"};
    command.insert(command.end(), more.begin(), more.end());
    auto worker = std::make_unique<ServingProcess>(std::move(command));
    EXPECT_FALSE(worker->address.empty()) << worker->process.err();
    return worker;
  }

  const std::string model_ = WriteSynthetic(SyntheticModel(), "hung_process");
};

// Before it has had any request: nothing has been moved over its links yet.
TEST_F(HungProcessTest, LinksOfANewWorkerThatHangAreNoticed) {
  const auto prefill = Worker("prefill", "prefill-0"), decode = Worker("decode", "decode-0");
  const ServingProcess router({RUNAHEAD_ROUTER, "--model", model_,
                               absl::StrCat("--workers=role=prefill,address=", prefill->address),
                               absl::StrCat("--workers=role=decode,address=", decode->address)});
  ASSERT_FALSE(router.address.empty()) << router.process.err();
  const auto in_state = [&](const std::string& metric) { return MetricOf(router.metrics, metric); };
  constexpr char kReady[] = "runahead_workers{role=\"decode\",state=\"ready\"}";
  constexpr char kSuspected[] = "runahead_workers_suspected{role=\"decode\"}";
  ASSERT_TRUE(Eventually([&] { return in_state(kReady) == 1; }));
  for (const pid_t pid : {prefill->process.pid(), decode->process.pid(), router.process.pid()}) ExpectKnownThreads(pid);
  {
    const FrozenThread frozen(*ThreadNamed(decode->process.pid(), "links"));
    if (!frozen.status().ok()) GTEST_SKIP() << "threads cannot be frozen: " << frozen.status();
    EXPECT_TRUE(Eventually([&] { return in_state(kSuspected) == 1 && in_state(kReady) == 0; }));
  }
  const auto stub = OwnStub(router.address);
  // The first request knows nothing. The second begins with what the first left.
  EXPECT_TRUE(Eventually([&] {
    const Answer answer = GenerateOver(*stub, RequestOf(SyntheticIds(40, 1), 4));
    return answer.status.ok() && answer.finished.usage().cached_prompt_tokens() == 39;
  }));
  EXPECT_EQ(in_state(kSuspected), 0);
}

// A process that computes prompts and decodes them.
class HungBothTest : public HungProcessTest {
 protected:
  void Serve(const std::vector<std::string>& more) {
    worker_ = Worker("both", "both-0", more);
    router_ = std::make_unique<ServingProcess>(std::vector<std::string>{
        RUNAHEAD_ROUTER, "--model", model_, absl::StrCat("--workers=role=both,address=", worker_->address)});
    ASSERT_FALSE(router_->address.empty()) << router_->process.err();
    stub_ = OwnStub(router_->address);
  }
  Answer AnswerTo(const v1::GenerateRequest& request) const { return GenerateOver(*stub_, request); }
  // Freezes each of the threads in turn while the request, which waits for it, is served. Another worker there is not.
  template <class Threads>
  void ExpectDoneAnewOnceNothingHangs(const Threads& threads, const v1::GenerateRequest& request,
                                      const std::vector<int32_t>& undisturbed) {
    for (const pid_t pid : {worker_->process.pid(), router_->process.pid()}) ExpectKnownThreads(pid);
    for (const char* thread : threads) {
      SCOPED_TRACE(thread);
      auto frozen = std::make_unique<FrozenThread>(*ThreadNamed(worker_->process.pid(), thread));
      if (!frozen->status().ok()) GTEST_SKIP() << "threads cannot be frozen: " << frozen->status();
      auto answer = std::async(std::launch::async, [&] { return AnswerTo(request); });
      EXPECT_TRUE(Eventually(
          [&] { return MetricOf(router_->metrics, "runahead_workers{role=\"decode\",state=\"ready\"}") == 0; }));
      frozen.reset();
      FaultsCluster::ExpectUnharmed(answer.get(), undisturbed);
      EXPECT_TRUE(Eventually([&] { return AnswerTo(request).status.ok(); }));
    }
  }

  std::unique_ptr<ServingProcess> worker_, router_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// Its slices go to its own store, over no link.
TEST_F(HungBothTest, ASliceForTheProcessItselfThatHangsIsDoneAnew) {
  ASSERT_NO_FATAL_FAILURE(Serve({"--dtype", "f32"}));
  // What is known moves no slice.
  const v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(40, 1), 4));
  Answer undisturbed;
  ASSERT_TRUE(Eventually([&] { return (undisturbed = AnswerTo(request)).status.ok(); }));
  ExpectDoneAnewOnceNothingHangs(kFrozenInBoth, request, undisturbed.ids);
}

// A chain gets what the process's own store knows, over no link.
TEST_F(HungBothTest, AKnownBeginningOfTheProcessItselfThatHangsIsDoneAnew) {
  // In f32 the prompt's cut changes no token.
  ASSERT_NO_FATAL_FAILURE(Serve({"--dtype", "f32", "--step-rows", "off"}));
  const v1::GenerateRequest request = RequestOf(SyntheticIds(600, 1), 4);
  Answer undisturbed;
  ASSERT_TRUE(Eventually([&] {
    undisturbed = AnswerTo(request);
    return undisturbed.status.ok() && undisturbed.finished.usage().cached_prompt_tokens() == 599;
  }));
  ExpectDoneAnewOnceNothingHangs(kFrozenInPrefix, request, undisturbed.ids);
}

}  // namespace
}  // namespace runahead
