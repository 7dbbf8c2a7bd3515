// Processes that stand still for long (SIGSTOP): nobody ends because of it, and what a worker's standing hits goes on.
// stop_stages_test stops them at every stage of a request, for a short and for a long time.
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/integration/faults_fixture.h"

namespace runahead {
namespace {

class PauseTest : public FaultsTest {
 protected:
  void SetUp() override { before_ = cluster_.pids(); }
  void TearDown() override { EXPECT_EQ(cluster_.pids(), before_); }  // nobody ended

  const std::vector<int32_t> long_answer_ = cluster_.GenerateEventually(LongAnswer()).ids;
  const std::vector<int32_t> long_prompt_ = cluster_.GenerateEventually(LongPrompt()).ids;
  std::map<std::string, pid_t> before_;
};

TEST_F(PauseTest, TheServiceIsBackAfterAPauseOfTheRouterOf14Seconds) {
  const auto prompt = BeginLongPrompt();
  const auto answer = BeginLongAnswer();
  PauseFor(absl::Seconds(14), cluster_.pid("router"));
  ExpectServiceAgain();
  if (!prompt->answer().status.ok()) ExpectFailed(prompt->answer(), long_prompt_, "");
  if (!answer->answer().status.ok()) ExpectFailed(answer->answer(), long_answer_, "");
}

// The router waits for a decode worker's answer to Reserve while it stands still itself: that time counts for nothing,
// whether the answer is there when it wakes, or comes only then, as after a sleep of the whole machine.
TEST_F(PauseTest, APauseOfTheRouterWhileAWorkerIsAskedForALeaseLosesNothing) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(ShortPrompt(1)).ids;
  const pid_t router = cluster_.pid("router"), decode = cluster_.pid("decode-0");
  for (const bool wakes_first : {true, false}) {
    SCOPED_TRACE(wakes_first ? "the worker wakes first" : "the router wakes first");
    ExpectNoStreamEnds([&] {
      StopProcess(decode);
      std::vector<std::unique_ptr<Running>> asking;
      for (int i = 0; i < 4; ++i) asking.push_back(std::make_unique<Running>(cluster_, ShortPrompt(1)));
      EXPECT_TRUE(Eventually([&] {
        return cluster_.Metric("router", "runahead_requests_in_flight") == 4 &&
               cluster_.Metric("router", "runahead_queue_depth{priority=\"normal\"}") == 0;
      }));
      StopProcess(router);
      if (wakes_first) kill(decode, SIGCONT);
      absl::SleepFor(absl::Milliseconds(4500));  // what is tested: a pause of this length
      kill(router, SIGCONT);
      if (!wakes_first) kill(decode, SIGCONT);
      for (const auto& running : asking) ExpectUnharmed(running->answer(), undisturbed);
      ExpectServiceAgain();
    });
  }
}

class LongPauseTest : public FaultsTest {
 protected:
  LongPauseTest() : FaultsTest({"--prefill", "3", "--decode", "2"}) {}
  // How often the router has judged a worker to be silent.
  size_t TimesGivenUp() const {
    return std::vector<std::string>(absl::StrSplit(cluster_.Log(), "no sign of life")).size() - 1;
  }
};

// The middle one of three, under load: stop_stages_test stops each kind of worker so long, at every stage.
TEST_F(LongPauseTest, AWorkerThatStandsStillFor10SecondsLosesNothing) {
  const std::map<std::string, pid_t> before = cluster_.pids();
  Load load(cluster_, MixedLoad());
  load.AwaitRound();
  PauseFor(absl::Seconds(10), cluster_.pid("prefill-1"));
  load.AwaitRound();
  load.Stop();
  EXPECT_GT(TimesGivenUp(), 0u);
  ExpectServiceAgain();
  EXPECT_EQ(cluster_.pids(), before);
}

}  // namespace
}  // namespace runahead
