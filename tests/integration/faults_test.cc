// Processes that hang or are told to stop, and clients that go, in the middle of a request: each ends in a clear
// status, everything is freed, and the service answers as soon as the worker is back. fault_stages_test kills at every
// stage, stop_stages_test stops there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/faults_fixture.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

TEST_F(FaultsTest, AHungPrefillWorkerIsNoticedAndTheServiceComesBack) {
  const auto running = BeginLongPrompt();
  StopProcess(cluster_.pid("prefill-1"));
  const absl::Time hung = absl::Now();
  EXPECT_EQ(running->answer().status.error_code(), grpc::StatusCode::UNAVAILABLE)
      << running->answer().status.error_message();
  EXPECT_LT(absl::Now() - hung, absl::Seconds(10));  // 3 s by contract, on a machine that is busy with other tests
  // One worker is left: short prompts go on.
  EXPECT_TRUE(cluster_.GenerateEventually(ShortPrompt(1)).status.ok());
  kill(cluster_.pid("prefill-1"), SIGCONT);
  ExpectServiceAgain();
}

TEST_F(FaultsTest, AHungDecodeWorkerHoldsNoMemoryOfPrefill) {
  const auto running = BeginLongPrompt();
  StopProcess(cluster_.pid("decode-0"));
  EXPECT_EQ(running->answer().status.error_code(), grpc::StatusCode::UNAVAILABLE)
      << running->answer().status.error_message();
  EXPECT_THAT(running->answer().status.error_message(), ::testing::HasSubstr("decode-0"));
  for (const char* worker : {"prefill-0", "prefill-1"}) {
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric(worker, "runahead_prefill_buffer_bytes") == 0; })) << worker;
  }
  kill(cluster_.pid("decode-0"), SIGCONT);
  ExpectServiceAgain();
}

TEST_F(FaultsTest, ACancelledClientAndADeadlineInMidPrefill) {
  {
    const auto running = BeginLongPrompt();
    running->Cancel();
    EXPECT_EQ(running->answer().status.error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(Eventually([&] { return cluster_.Ended("CANCELLED") == 1; }));
    cluster_.ExpectAllFree();
  }
  // Far less than the chain's slow edge takes.
  Running running(cluster_, LongPrompt(), absl::Milliseconds(1000));
  EXPECT_EQ(running.answer().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return cluster_.Ended("DEADLINE_EXCEEDED") == 1; }));
  ExpectServiceAgain();
}

TEST_F(FaultsTest, OthersOnTheSameEdgesAreUnharmedByACancel) {
  const auto doomed = BeginLongPrompt();
  v1::GenerateRequest request = RequestOf(SyntheticIds(64, 4), 12);
  request.mutable_experiment()->set_width(2);
  Running other(cluster_, request);
  doomed->Cancel();
  doomed->answer();
  ExpectUnharmed(other.answer(), cluster_.Generate(request).ids);
  cluster_.ExpectAllFree();
}

TEST_F(FaultsTest, TheRouterToldToStop) {
  for (int life = 0; life < 2; ++life) {
    ASSERT_TRUE(cluster_.GenerateEventually(ShortPrompt(2)).status.ok());
    const auto running = BeginLongPrompt();
    kill(cluster_.pid("router"), SIGTERM);
    EXPECT_TRUE(running->answer().status.ok()) << running->answer().status.error_message();  // what runs may end
    // The next router takes over the same workers, and the edges between them.
    ExpectServiceAgain();
  }
}

TEST_F(FaultsTest, AWorkerThatIsToldToStopInMidPrefillFinishesItAndEndsInOrder) {
  for (const char* leaver : {"prefill-0", "prefill-1"}) {
    SCOPED_TRACE(leaver);
    ASSERT_TRUE(cluster_.GenerateEventually(ShortPrompt(2)).status.ok());
    const auto running = BeginLongPrompt();
    kill(cluster_.pid(leaver), SIGTERM);
    EXPECT_TRUE(running->answer().status.ok()) << running->answer().status.error_message();
    ExpectServiceAgain();
    EXPECT_THAT(cluster_.Log(), ::testing::HasSubstr(absl::StrCat(leaver, " ended with exit code 0")));
  }
}

// Three workers: the tail and the head are no neighbours, and hear of each other's end only by what is between them.
class ChainOfThreeTest : public FaultsTest {
 protected:
  ChainOfThreeTest() : FaultsTest({"--prefill", "3", "--decode", "1"}) {}

  // The end of a long prompt on which `end` is worked in mid-prefill.
  std::string EndOf(const std::function<void()>& end) {
    EXPECT_TRUE(cluster_.GenerateEventually(ShortPrompt(3)).status.ok());
    const auto running = BeginLongPrompt(LongPrompt(3));
    end();
    EXPECT_EQ(running->answer().status.error_code(), grpc::StatusCode::UNAVAILABLE);
    return running->answer().status.error_message();
  }
};

TEST_F(ChainOfThreeTest, ClientAndLogAreToldOfTheWorkerThatDiedAndNotOfItsNeighbours) {
  for (const char* victim : {"prefill-0", "prefill-1", "prefill-2"}) {
    SCOPED_TRACE(victim);
    const std::string said = EndOf([&] { kill(cluster_.pid(victim), SIGKILL); });
    const std::string cause = absl::StrCat("prefill worker ", victim, " was lost");
    EXPECT_THAT(said, ::testing::StartsWith(cause));
    // The line comes after the client has its answer.
    const auto logged = ::testing::ContainsRegex(absl::StrCat("code=UNAVAILABLE .*error=\"", cause));
    EXPECT_TRUE(Eventually([&] { return ::testing::Value(cluster_.Log(), logged); }));
  }
}

TEST_F(ChainOfThreeTest, ClientIsToldOfTheDecodeWorkerThatDiedAndNotOfTheChain) {
  const std::string said = EndOf([&] { kill(cluster_.pid("decode-0"), SIGKILL); });
  EXPECT_THAT(said, ::testing::HasSubstr("decode-0"));
}

TEST(LineTest, NeighboursMeetAgainWhenTheWorkerBetweenThemComesAndGoes) {
  LocalCluster cluster(WriteSynthetic({.layers = 6}, "line"),
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
