// Answers whose decode worker, or router, ends in the middle of them, with real processes and what is computed in by
// default: the whole stream is the undisturbed one, to the bit of a log probability.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/integration/faults_fixture.h"

namespace runahead {
namespace {

class RebuildProcessTest : public ::testing::Test {
 protected:
  explicit RebuildProcessTest(const char* decode_workers = "2")
      : cluster_(WriteQuantisedModel("rebuild"), {"--prefill", "2", "--decode", decode_workers}) {}

  static v1::GenerateRequest Greedy() {
    v1::GenerateRequest request = RequestOf(SyntheticIds(300, 7), 1500);
    request.mutable_stop()->set_ignore_eos(true);
    request.mutable_sampling()->set_logprobs(3);
    return request;
  }
  static v1::GenerateRequest Seeded() {
    v1::GenerateRequest request = Greedy();
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_temperature(0.9f);
    sampling.set_seed(12);
    sampling.set_repetition_penalty(1.1f);
    sampling.set_frequency_penalty(0.2f);
    return request;
  }
  Answer Undisturbed(const v1::GenerateRequest& request) {
    Answer answer = cluster_.GenerateEventually(Uncached(request));
    EXPECT_EQ(answer.ids.size(), 1500u) << answer.status.error_message();
    cluster_.ExpectAllFree();
    return answer;
  }
  // The decode worker that has the only lease.
  std::string Decoding() const {
    for (const auto& [name, pid] : cluster_.pids()) {
      if (name.starts_with("decode") && cluster_.Metric(name, "runahead_kv_leases") == 1) return name;
    }
    ADD_FAILURE() << "nobody decodes";
    return "decode-0";
  }
  // Runs the request; `fault` comes once, when the client has so many tokens.
  Answer WithFault(const v1::GenerateRequest& request, size_t at, const std::function<void()>& fault) {
    bool came = false;
    return cluster_.Generate(request, nullptr, [&](size_t tokens) {
      if (tokens < at || came) return;
      came = true;
      fault();
    });
  }
  static void ExpectWhole(const Answer& got, const Answer& undisturbed) {
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_EQ(got.ids, undisturbed.ids);
    EXPECT_EQ(got.text, undisturbed.text);
    EXPECT_EQ(got.finished.reason(), undisturbed.finished.reason());
    EXPECT_EQ(got.finished.usage().completion_tokens(), 1500);
    ASSERT_EQ(got.logprobs.size(), undisturbed.logprobs.size());
    for (size_t i = 0; i < got.logprobs.size(); ++i) {
      ASSERT_EQ(got.logprobs[i].SerializeAsString(), undisturbed.logprobs[i].SerializeAsString()) << i;
    }
  }

  LocalCluster cluster_;
};

// Each run finds on a living worker what the one before left there, and begins with it.
TEST_F(RebuildProcessTest, AnAnswerOutlivesTheDeathOfItsDecodeWorker) {
  int known = 0;
  for (const v1::GenerateRequest& request : {Greedy(), Seeded()}) {
    const Answer undisturbed = Undisturbed(request);
    for (const size_t at : {1, 50}) {
      const Answer got = WithFault(request, at, [this] { kill(cluster_.pid(Decoding()), SIGKILL); });
      ExpectWhole(got, undisturbed);
      known += got.started.plan().known_tokens() > 0;  // the plan in the end is that of who went on
      EXPECT_GE(got.finished.failovers(), 1)
          << "its call may end before its control stream: it is asked once more then";
      EXPECT_NE(got.finished.plan().decode_worker(), got.started.plan().decode_worker());
      EXPECT_TRUE(Eventually(
          [&] { return cluster_.Metric("router", "runahead_workers{role=\"decode\",state=\"ready\"}") == 2; }));
    }
  }
  EXPECT_GT(known, 0);
  cluster_.ExpectAllFree();
}

TEST_F(RebuildProcessTest, AnAnswerWhoseDecodeWorkerStandsStillGoesOnElsewhere) {
  const Answer undisturbed = Undisturbed(Seeded());
  pid_t stopped = 0;
  const Answer got = WithFault(Seeded(), 3, [&] {
    stopped = cluster_.pid(Decoding());
    StopProcess(stopped);
  });
  ExpectWhole(got, undisturbed);
  EXPECT_GE(got.finished.failovers(), 1);
  kill(stopped, SIGCONT);
  EXPECT_TRUE(
      Eventually([&] { return cluster_.Metric("router", "runahead_workers{role=\"decode\",state=\"ready\"}") == 2; }));
  cluster_.ExpectAllFree();
}

// The next router knows nothing of the request: the client brings what it has.
TEST_F(RebuildProcessTest, AClientGoesOnItselfWhenTheRouterDies) {
  const Answer undisturbed = Undisturbed(Seeded());
  const Answer first = WithFault(Seeded(), 40, [this] { kill(cluster_.pid("router"), SIGKILL); });
  EXPECT_EQ(first.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_LT(first.ids.size(), 1500u);
  v1::GenerateRequest request = Seeded();
  request.mutable_sampling()->set_seed(first.started.seed());
  request.mutable_output_ids()->Assign(first.ids.begin(), first.ids.end());
  Answer rest = cluster_.GenerateEventually(request);
  rest.text = first.text + rest.text;
  rest.ids.insert(rest.ids.begin(), first.ids.begin(), first.ids.end());
  rest.logprobs.insert(rest.logprobs.begin(), first.logprobs.begin(), first.logprobs.end());
  ExpectWhole(rest, undisturbed);
  cluster_.ExpectAllFree();
}

class OneDecodeWorkerTest : public RebuildProcessTest {
 protected:
  OneDecodeWorkerTest() : RebuildProcessTest("1") {}
};

TEST_F(OneDecodeWorkerTest, TheReturnOfTheOnlyOneIsWaitedFor) {
  const Answer undisturbed = Undisturbed(Greedy());
  const Answer got = WithFault(Greedy(), 20, [this] { kill(cluster_.pid("decode-0"), SIGKILL); });
  ExpectWhole(got, undisturbed);
  EXPECT_GE(got.finished.failovers(), 1);
  EXPECT_GE(cluster_.Metric("router", "runahead_failovers_total{cause=\"worker_lost\",stage=\"decode\"}"), 1);
  cluster_.ExpectAllFree();
}

}  // namespace
}  // namespace runahead
