// Processes that hang or are told to stop, and clients that go, in the middle of a request: it goes on, or ends in a
// clear status, everything is freed, and the service answers as soon as the worker is back. fault_stages_test
// kills at every stage, stop_stages_test stops there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/faults_fixture.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

// LongPrompt and all that names a width are of a chain, past what is known. Beside them is an answer whose prompt was
// known.
void ExpectBehindKnown(Running& beside, const std::vector<int32_t>& undisturbed) {
  FaultsCluster::ExpectUnharmed(beside.answer(), undisturbed);
  EXPECT_EQ(undisturbed.size(), 2500u);
  EXPECT_EQ(beside.answer().started.plan().known_tokens(), 99);
}

TEST_F(FaultsTest, AHungPrefillWorkerIsNoticedAndTheServiceComesBack) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(LongPrompt()).ids;
  const std::vector<int32_t> known = cluster_.GenerateEventually(Uncached(KnownAnswer())).ids;
  const auto beside = BeginKnownAnswer();
  const auto running = BeginLongPrompt();
  StopProcess(cluster_.pid("prefill-1"));
  // 3 s by contract, which worker_connection_test shows on a clock of its own.
  EXPECT_TRUE(
      Eventually([&] { return cluster_.Metric("router", "runahead_workers{role=\"prefill\",state=\"lost\"}") == 1; }));
  // One worker is left: short prompts go on, though the one that needs both waits.
  EXPECT_TRUE(cluster_.GenerateEventually(ShortPrompt(1)).status.ok());
  EXPECT_EQ(running->tokens(), 0u);
  kill(cluster_.pid("prefill-1"), SIGCONT);
  ExpectUnharmed(running->answer(), undisturbed);
  ExpectBehindKnown(*beside, known);
  ExpectServiceAgain();
}

TEST_F(FaultsTest, AHungDecodeWorkerHoldsNoMemoryOfPrefill) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(LongPrompt()).ids;
  const std::vector<int32_t> known = cluster_.GenerateEventually(Uncached(KnownAnswer())).ids;
  const auto beside = BeginKnownAnswer();
  const auto running = BeginLongPrompt();
  StopProcess(cluster_.pid("decode-0"));
  EXPECT_TRUE(
      Eventually([&] { return cluster_.Metric("router", "runahead_workers{role=\"decode\",state=\"lost\"}") == 1; }));
  for (const char* worker : {"prefill-0", "prefill-1"}) {
    EXPECT_TRUE(Eventually([&] { return cluster_.Metric(worker, "runahead_prefill_buffer_bytes") == 0; })) << worker;
  }
  kill(cluster_.pid("decode-0"), SIGCONT);
  ExpectUnharmed(running->answer(), undisturbed);
  ExpectBehindKnown(*beside, known);
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
  const auto ended = [&] { return cluster_.Ended("DEADLINE_EXCEEDED") + cluster_.Ended("CANCELLED"); };
  const double before = ended();
  // Far less than the chain's slow edge takes.
  Running running(cluster_, LongPrompt(), absl::Milliseconds(1000));
  EXPECT_EQ(running.answer().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // The client's cancel may come so late after it that the router does not take it for the deadline's.
  EXPECT_TRUE(Eventually([&] { return ended() == before + 1; }));
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
  const std::vector<int32_t> known = cluster_.GenerateEventually(Uncached(KnownAnswer())).ids;
  for (int life = 0; life < 2; ++life) {
    ASSERT_TRUE(cluster_.GenerateEventually(ShortPrompt(2)).status.ok());
    const auto beside = BeginKnownAnswer();
    const auto running = BeginLongPrompt();
    kill(cluster_.pid("router"), SIGTERM);
    EXPECT_TRUE(running->answer().status.ok()) << running->answer().status.error_message();  // what runs may end
    ExpectBehindKnown(*beside, known);
    // The next router takes over the same workers, and the edges between them.
    ExpectServiceAgain();
  }
}

TEST_F(FaultsTest, AWorkerThatIsToldToStopInMidPrefillFinishesItAndEndsInOrder) {
  const std::vector<int32_t> known = cluster_.GenerateEventually(Uncached(KnownAnswer())).ids;
  for (const char* leaver : {"prefill-0", "prefill-1"}) {
    SCOPED_TRACE(leaver);
    ASSERT_TRUE(cluster_.GenerateEventually(ShortPrompt(2)).status.ok());
    const auto beside = BeginKnownAnswer();
    const auto running = BeginLongPrompt();
    kill(cluster_.pid(leaver), SIGTERM);
    EXPECT_TRUE(running->answer().status.ok()) << running->answer().status.error_message();
    ExpectBehindKnown(*beside, known);
    ExpectServiceAgain();
    EXPECT_THAT(cluster_.Log(), ::testing::HasSubstr(absl::StrCat(leaver, " ended with exit code 0")));
  }
}

// Three workers: the tail and the head are no neighbours, and hear of each other's end only by what is between them.
class ChainOfThreeTest : public FaultsTest {
 protected:
  ChainOfThreeTest() : FaultsTest({"--prefill", "3", "--decode", "1"}) {}

  // A long prompt whose worker `victim` is killed in mid-prefill goes on, and the log says because of whom: the text
  // behind "goes on with other workers: ".
  void ExpectOutlivedBecauseOf(const std::string& victim, const std::string& cause) {
    SCOPED_TRACE(victim);
    EXPECT_TRUE(cluster_.GenerateEventually(ShortPrompt(3)).status.ok());
    v1::GenerateRequest request = LongPrompt(3);
    request.set_request_id(absl::StrCat("without-", victim));
    const auto running = BeginLongPrompt(request);
    kill(cluster_.pid(victim), SIGKILL);
    EXPECT_TRUE(running->answer().status.ok()) << running->answer().status.error_message();
    EXPECT_GE(running->answer().finished.failovers(), 1);
    EXPECT_THAT(cluster_.Log(), ::testing::ContainsRegex(
                                    absl::StrCat("request without-", victim, " goes on with other workers: ", cause)));
  }
};

TEST_F(ChainOfThreeTest, TheLogTellsOfTheWorkerThatDiedAndNotOfItsNeighbours) {
  for (const std::string victim : {"prefill-0", "prefill-1", "prefill-2"}) {
    ExpectOutlivedBecauseOf(victim, absl::StrCat("prefill worker ", victim, " was lost"));
  }
}

TEST_F(ChainOfThreeTest, TheLogTellsOfTheDecodeWorkerThatDiedAndNotOfTheChain) {
  ExpectOutlivedBecauseOf("decode-0", ".*decode-0");
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
