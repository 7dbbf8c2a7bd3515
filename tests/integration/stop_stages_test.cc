// Every process stopped at every stage of a request (SIGSTOP), for less and, the router aside, for more than what the
// others bear: nothing is lost, what needs a worker goes on with others or waits for its return, and nobody ends.
// fault_stages_test kills at every stage.
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/integration/staged_cluster.h"

namespace runahead {
namespace {

constexpr const char* kWorkers[] = {"prefill-0", "prefill-1", "decode-0"};

// A stop of a process with the request at its stage. What held the request there goes on as soon as the process stands,
// so the next stages meet it, too.
class Stop {
 public:
  Stop(StagedCluster& cluster, const std::string& victim) : pid_(cluster.pids_.at(victim)), since_(absl::Now()) {
    const std::optional<absl::Time> holds = cluster.staged_.decode_stands_since;
    if (victim == "decode-0" && holds) {
      since_ = *holds;
      return;
    }
    StopProcess(pid_);
    cluster.Release();
  }
  // Waits until it has stood for so long, and lets it go on.
  void EndAfter(absl::Duration duration) {
    absl::SleepFor(since_ + duration - absl::Now());  // what is tested: a stop of this length
    kill(pid_, SIGCONT);
  }

 private:
  const pid_t pid_;
  absl::Time since_;
};

// How often the router has judged that worker to be silent.
int TimesGivenUp(const StagedCluster& staged, const std::string& worker) {
  int times = 0;
  const std::string log = staged.cluster_.Log();
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    times += absl::StrContains(line, "[registry]") && absl::StrContains(line, worker) &&
             absl::StrContains(line, "no sign of life");
  }
  return times;
}

class StopTest : public FaultsTest {};

TEST_F(StopTest, AStopOfOneSecondInDecodeLosesNothing) {
  const std::vector<int32_t> undisturbed = cluster_.GenerateEventually(LongAnswer()).ids;
  ASSERT_EQ(undisturbed.size(), 1000u);
  const auto running = BeginLongAnswer();
  PauseFor(absl::Seconds(1), cluster_.pid("decode-0"));
  ExpectUnharmed(running->answer(), undisturbed);
  ExpectServiceAgain();
}

TEST(StopStagesTest, AShortStopLosesNothing) {
  const std::pair<const char*, absl::Duration> kStops[] = {{"prefill-0", absl::Seconds(2)},
                                                           {"prefill-1", absl::Seconds(2)},
                                                           {"decode-0", absl::Seconds(2)},
                                                           {"router", absl::Seconds(2)},
                                                           {"router", absl::Milliseconds(4500)}};
  ForEachStage([&](StagedCluster& staged) {
    for (const auto& [victim, duration] : kStops) {
      SCOPED_TRACE(absl::StrCat(victim, " for ", absl::FormatDuration(duration)));
      staged.ExpectNoStreamEnds([&staged, &victim = victim, &duration = duration] {
        staged.Begin();
        Stop stop(staged, victim);
        stop.EndAfter(duration);
        staged.ExpectUnharmed();
        staged.ExpectOthersUnharmed();
        staged.ExpectServiceAgain();
      });
    }
  });
}

TEST(StopStagesTest, AStopOfAWorkerFor10SecondsLosesNothing) {
  ForEachStage([](StagedCluster& staged) {
    for (const std::string victim : kWorkers) {
      SCOPED_TRACE(victim);
      const int before = TimesGivenUp(staged, victim);
      staged.Begin();
      Stop stop(staged, victim);
      stop.EndAfter(absl::Seconds(10));
      staged.ExpectUnharmed();
      EXPECT_TRUE(Eventually([&] { return TimesGivenUp(staged, victim) > before; }));
      staged.ExpectOthersUnharmed();
      staged.ExpectServiceAgain();
    }
  });
}

}  // namespace
}  // namespace runahead
