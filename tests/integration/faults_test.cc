// Processes killed and clients gone at every step of a request: each ends in a clear status, everything is freed, and
// the service answers as soon as the worker is back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

SyntheticModel Model() {
  SyntheticModel model;
  model.layers = 6;
  return model;
}

// Edges so slow that a prompt of 2,000 tokens is in prefill for seconds: 6 layers x 2,000 tokens x 256 bytes over
// 0.01 Gbit/s. What is killed meanwhile is killed in mid-prefill.
constexpr char kSlowChain[] = "--chain-link-gbps 0.01";

class FaultsTest : public ::testing::Test {
 protected:
  explicit FaultsTest(int prefill = 2)
      : cluster_(WriteSynthetic(Model(), "faults"),
                 {"--prefill", absl::StrCat(prefill), "--decode", "1", "--dtype", "f32", "--experiments", kSlowChain}) {
  }

  // A request that runs in its own thread.
  struct Running {
    grpc::ClientContext context;
    Answer answer;
    std::thread thread;
    ~Running() {
      if (thread.joinable()) thread.join();
    }
  };
  void Run(Running& running, const v1::GenerateRequest& request) {
    running.thread =
        std::thread([this, &running, request] { running.answer = cluster_.Generate(request, &running.context); });
  }
  v1::GenerateRequest LongPrompt() {
    v1::GenerateRequest request = RequestOf(SyntheticIds(2000, 1), 8);
    request.mutable_experiment()->set_width(2);
    return request;
  }
  v1::GenerateRequest ShortPrompt(int width) {
    v1::GenerateRequest request = RequestOf(SyntheticIds(8, 2), 4);
    request.mutable_experiment()->set_width(width);
    return request;
  }
  // The head works on a prompt: its successor has got the first bytes.
  void AwaitMidPrefill() {
    const double before = Received();
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric("decode-0", "runahead_kv_leases") == 1; }));
    EXPECT_TRUE(Eventually([&] { return Received() > before; }));
  }
  // Bytes that the tail has got.
  double Received() { return cluster_.Sum("prefill-1", "runahead_link_bytes_total{direction=\"receive\""); }
  void ExpectServiceAgain() {
    const Answer both = cluster_.GenerateEventually(ShortPrompt(2));
    EXPECT_TRUE(both.status.ok()) << both.status.error_message();
    EXPECT_EQ(both.ids.size(), 4u);
    cluster_.ExpectAllFree();
  }

  LocalCluster cluster_;
};

TEST_F(FaultsTest, APrefillWorkerKilledInMidPrefill) {
  for (const char* victim : {"prefill-0", "prefill-1"}) {
    SCOPED_TRACE(victim);
    ASSERT_TRUE(cluster_.GenerateEventually(ShortPrompt(2)).status.ok());
    Running running;
    Run(running, LongPrompt());
    AwaitMidPrefill();
    kill(cluster_.pid(victim), SIGKILL);
    running.thread.join();
    EXPECT_EQ(running.answer.status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << running.answer.status.error_message();
    EXPECT_THAT(running.answer.status.error_message(), ::testing::HasSubstr(victim));
    ExpectServiceAgain();
  }
}

TEST_F(FaultsTest, ADecodeWorkerKilledInMidDecode) {
  Answer answer = cluster_.Generate(RequestOf(SyntheticIds(30, 3), 3000), nullptr, [&](size_t tokens) {
    if (tokens >= 3) kill(cluster_.pid("decode-0"), SIGKILL);
  });
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << answer.status.error_message();
  EXPECT_THAT(answer.status.error_message(), ::testing::HasSubstr("decode-0"));
  ExpectServiceAgain();
}

TEST_F(FaultsTest, ADecodeWorkerKilledInMidPrefill) {
  Running running;
  Run(running, LongPrompt());
  AwaitMidPrefill();
  kill(cluster_.pid("decode-0"), SIGKILL);
  running.thread.join();
  EXPECT_EQ(running.answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << running.answer.status.error_message();
  EXPECT_THAT(running.answer.status.error_message(), ::testing::HasSubstr("decode-0"));
  ExpectServiceAgain();
}

TEST_F(FaultsTest, AHungPrefillWorkerIsNoticedAndTheServiceComesBack) {
  Running running;
  Run(running, LongPrompt());
  AwaitMidPrefill();
  kill(cluster_.pid("prefill-1"), SIGSTOP);
  const absl::Time hung = absl::Now();
  running.thread.join();
  EXPECT_LT(absl::Now() - hung, absl::Seconds(10));  // 3 s by contract, on a machine that is busy with other tests
  EXPECT_EQ(running.answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << running.answer.status.error_message();
  // One worker is left: short prompts go on.
  EXPECT_TRUE(cluster_.GenerateEventually(ShortPrompt(1)).status.ok());
  kill(cluster_.pid("prefill-1"), SIGCONT);
  ExpectServiceAgain();
}

TEST_F(FaultsTest, AHungDecodeWorkerHoldsNoMemoryOfPrefill) {
  Running running;
  Run(running, LongPrompt());
  AwaitMidPrefill();
  kill(cluster_.pid("decode-0"), SIGSTOP);
  running.thread.join();
  EXPECT_EQ(running.answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << running.answer.status.error_message();
  EXPECT_THAT(running.answer.status.error_message(), ::testing::HasSubstr("decode"));
  for (const char* worker : {"prefill-0", "prefill-1"}) {
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric(worker, "runahead_prefill_buffer_bytes") == 0; })) << worker;
  }
  kill(cluster_.pid("decode-0"), SIGCONT);
  ExpectServiceAgain();
}

TEST_F(FaultsTest, ACancelledClientAndADeadlineInMidPrefill) {
  {
    Running running;
    Run(running, LongPrompt());
    AwaitMidPrefill();
    running.context.TryCancel();
    running.thread.join();
    EXPECT_EQ(running.answer.status.error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(Eventually([&] { return cluster_.Ended("CANCELLED") == 1; }));
    cluster_.ExpectAllFree();
  }
  Running running;
  running.context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(800));
  Run(running, LongPrompt());
  AwaitMidPrefill();
  running.thread.join();
  EXPECT_EQ(running.answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return cluster_.Ended("DEADLINE_EXCEEDED") == 1; }));
  ExpectServiceAgain();
}

TEST_F(FaultsTest, OthersOnTheSameEdgesAreUnharmedByACancel) {
  Running doomed;
  Run(doomed, LongPrompt());
  AwaitMidPrefill();
  Running other;
  v1::GenerateRequest request = RequestOf(SyntheticIds(64, 4), 12);
  request.mutable_experiment()->set_width(2);
  Run(other, request);
  doomed.context.TryCancel();
  doomed.thread.join();
  other.thread.join();
  EXPECT_TRUE(other.answer.status.ok()) << other.answer.status.error_message();
  EXPECT_EQ(other.answer.ids, cluster_.Generate(request).ids);
  cluster_.ExpectAllFree();
}

TEST_F(FaultsTest, TheRouterKilled) {
  ASSERT_TRUE(cluster_.GenerateEventually(ShortPrompt(2)).status.ok());
  Running running;
  Run(running, LongPrompt());
  AwaitMidPrefill();
  kill(cluster_.pid("router"), SIGKILL);
  running.thread.join();
  EXPECT_EQ(running.answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << running.answer.status.error_message();
  // The next router takes over the same workers, and the edges between them.
  const Answer both = cluster_.GenerateEventually(ShortPrompt(2));
  EXPECT_TRUE(both.status.ok()) << both.status.error_message();
  EXPECT_EQ(both.started.plan().workers_size(), 2);
  // The old router's job ended with its stream; its lease, which nobody released, goes when it expires (store_test).
  for (const char* worker : {"prefill-0", "prefill-1"}) {
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric(worker, "runahead_prefill_buffer_bytes") == 0; })) << worker;
  }
}

TEST_F(FaultsTest, TheRouterToldToStop) {
  for (int life = 0; life < 2; ++life) {
    ASSERT_TRUE(cluster_.GenerateEventually(ShortPrompt(2)).status.ok());
    Running running;
    Run(running, LongPrompt());
    AwaitMidPrefill();
    kill(cluster_.pid("router"), SIGTERM);
    running.thread.join();
    EXPECT_TRUE(running.answer.status.ok()) << running.answer.status.error_message();  // what runs may end
    // The next router takes over the same workers, and the edges between them.
    ExpectServiceAgain();
  }
}

TEST_F(FaultsTest, AWorkerThatIsToldToStopInMidPrefillEndsInOrder) {
  for (const char* leaver : {"prefill-0", "prefill-1"}) {
    SCOPED_TRACE(leaver);
    ASSERT_TRUE(cluster_.GenerateEventually(ShortPrompt(2)).status.ok());
    Running running;
    Run(running, LongPrompt());
    AwaitMidPrefill();
    kill(cluster_.pid(leaver), SIGTERM);
    running.thread.join();
    EXPECT_EQ(running.answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
    ExpectServiceAgain();
    EXPECT_THAT(cluster_.Log(), ::testing::HasSubstr(absl::StrCat(leaver, " ended with exit code 0")));
  }
}

// Three workers: the tail and the head are no neighbours, and hear of each other's end only by what is between them.
class ChainOfThreeTest : public FaultsTest {
 protected:
  ChainOfThreeTest() : FaultsTest(3) {}

  // The end of a long prompt on which `end` is worked in mid-prefill.
  std::string EndOf(const std::function<void()>& end) {
    EXPECT_TRUE(cluster_.GenerateEventually(ShortPrompt(3)).status.ok());
    Running running;
    v1::GenerateRequest request = LongPrompt();
    request.mutable_experiment()->set_width(3);
    Run(running, request);
    AwaitMidPrefill();
    end();
    running.thread.join();
    EXPECT_EQ(running.answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
    return running.answer.status.error_message();
  }
};

TEST_F(ChainOfThreeTest, ClientAndLogAreToldOfTheWorkerThatDiedAndNotOfItsNeighbours) {
  for (const char* victim : {"prefill-0", "prefill-1", "prefill-2"}) {
    SCOPED_TRACE(victim);
    const std::string said = EndOf([&] { kill(cluster_.pid(victim), SIGKILL); });
    const std::string cause = absl::StrCat("prefill worker ", victim, " was lost");
    EXPECT_THAT(said, ::testing::StartsWith(cause));
    EXPECT_THAT(cluster_.Log(), ::testing::ContainsRegex(absl::StrCat("UNAVAILABLE .*: ", cause)));
  }
}

TEST_F(ChainOfThreeTest, ClientIsToldOfTheDecodeWorkerThatDiedAndNotOfTheChain) {
  const std::string said = EndOf([&] { kill(cluster_.pid("decode-0"), SIGKILL); });
  EXPECT_THAT(said, ::testing::HasSubstr("decode-0"));
}

TEST(LineTest, NeighboursMeetAgainWhenTheWorkerBetweenThemComesAndGoes) {
  LocalCluster cluster(WriteSynthetic(Model(), "line"),
                       {"--prefill", "3", "--decode", "1", "--dtype", "f32", "--experiments"});
  const auto with_width = [](int width) {
    v1::GenerateRequest request = RequestOf(SyntheticIds(30, 2), 4);
    request.mutable_experiment()->set_width(width);
    return request;
  };
  const Answer whole = cluster.GenerateEventually(with_width(3));
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  kill(cluster.pid("prefill-1"), SIGKILL);
  // Back on its old port as another incarnation: all three again, with the same tokens.
  const Answer again = cluster.GenerateEventually(with_width(3));
  EXPECT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.ids, whole.ids);
  cluster.ExpectAllFree();
}

}  // namespace
}  // namespace runahead
