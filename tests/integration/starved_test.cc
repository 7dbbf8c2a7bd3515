// A busy neighbour: eight processes want the cores that a cluster under load needs. Nobody is taken to be lost or to
// hang because of it, and who really stands still is found none the less.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "tests/integration/faults_fixture.h"
#include "tests/testing/spinning_processes.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A minute, or RUNAHEAD_STARVED_SECONDS: docs/measurements.md says what ten minutes gave.
absl::Duration HowLong() {
  const char* const given = std::getenv("RUNAHEAD_STARVED_SECONDS");
  int seconds = 60;
  if (given != nullptr && !absl::SimpleAtoi(given, &seconds)) ADD_FAILURE() << given << " is no number";
  return absl::Seconds(seconds);
}

class StarvedTest : public FaultsTest {
 protected:
  StarvedTest() : FaultsTest({"--prefill", "2", "--decode", "2"}) {}

  double Suspected() const { return cluster_.Sum("router", "runahead_workers_suspected{"); }
  double Lost() const {
    return cluster_.Metric("router", "runahead_workers{role=\"prefill\",state=\"lost\"}") +
           cluster_.Metric("router", "runahead_workers{role=\"decode\",state=\"lost\"}");
  }
};

TEST_F(StarvedTest, NobodyIsLostOrSuspectedBesideEightBusyProcesses) {
  const std::map<std::string, pid_t> before = cluster_.pids();
  Load load(cluster_, MixedLoad());  // each answer is the undisturbed one, or Stop says so
  const testing::SpinningProcesses neighbours(8);
  const absl::Time end = absl::Now() + HowLong();
  int rounds = 0;
  for (; absl::Now() < end; ++rounds) {
    load.AwaitRound();
    ASSERT_EQ(Suspected(), 0) << cluster_.Log();
    ASSERT_EQ(Lost(), 0) << cluster_.Log();
  }
  load.Stop();
  EXPECT_GT(rounds, 0);
  std::cout << rounds << " rounds of all clients\n";
  EXPECT_EQ(cluster_.Sum("router", "runahead_failovers_total{"), 0);
  for (const char* const word : {"no sign of life", "was lost", "hangs", "given up"}) {
    EXPECT_THAT(cluster_.Log(), Not(HasSubstr(word)));
  }
  EXPECT_EQ(cluster_.pids(), before);
}

TEST_F(StarvedTest, AWorkerThatStandsStillIsLostBesideEightBusyProcesses) {
  const testing::SpinningProcesses neighbours(8);
  const pid_t decode = cluster_.pid("decode-1");
  StopProcess(decode);
  const absl::Time stopped = absl::Now();
  EXPECT_TRUE(Eventually([&] { return Lost() == 1; })) << cluster_.Log();
  std::cout << "lost after " << absl::Now() - stopped << "\n";
  EXPECT_TRUE(cluster_.GenerateEventually(ShortPrompt(1)).status.ok());  // the other one answers meanwhile
  EXPECT_EQ(Lost(), 1);
  kill(decode, SIGCONT);
  ExpectServiceAgain();
}

}  // namespace
}  // namespace runahead
