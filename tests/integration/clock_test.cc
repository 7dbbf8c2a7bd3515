// Somebody sets the time of day while requests run: no deadline passes by it, no lease expires, and no token changes.
// The processes see another time of day than the machine's (tests/testing/stepped_clock.cc).
#include "absl/time/clock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/faults_fixture.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

std::string OffsetFile() {
  return absl::StrCat(::testing::TempDir(), "/stepped-clock-", getpid());
}

// Seconds by which the time of day is off, for all who have the file open already too.
void StepTo(int64_t seconds) {
  std::fstream file(OffsetFile(), std::ios::in | std::ios::out | std::ios::binary);
  if (!file) file.open(OffsetFile(), std::ios::out | std::ios::binary);
  file.write(reinterpret_cast<const char*>(&seconds), sizeof seconds);
  ASSERT_TRUE(file.flush().good());
}

std::vector<std::string> SteppedClock() {
  StepTo(0);
  return {absl::StrCat("LD_PRELOAD=", RUNAHEAD_STEPPED_CLOCK), absl::StrCat("RUNAHEAD_STEPPED_CLOCK=", OffsetFile())};
}

class ClockTest : public FaultsTest {
 protected:
  ClockTest() : FaultsTest({"--prefill", "2", "--decode", "1"}, SteppedClock()) {}
  ~ClockTest() override { std::remove(OffsetFile().c_str()); }
};

constexpr int64_t kHour = 3600;

// Without it the other test would show nothing.
TEST(SteppedClockTest, ProcessesSeeTheStep) {
  const std::vector<std::string> environment = SteppedClock();
  StepTo(kHour);
  testing::TestProcess date({"/bin/date", "+%s"}, environment);
  EXPECT_EQ(date.Wait(), 0);
  int64_t seen = 0;
  ASSERT_TRUE(absl::SimpleAtoi(absl::StripAsciiWhitespace(date.out()), &seen)) << date.out();
  EXPECT_NEAR(static_cast<double>(seen - absl::ToUnixSeconds(absl::Now())), kHour, 600);
  std::remove(OffsetFile().c_str());
}

TEST_F(ClockTest, ARequestRunsOnWhileTheClockIsSet) {
  const std::vector<int32_t> long_prompt = cluster_.GenerateEventually(LongPrompt()).ids;
  const std::vector<int32_t> long_answer = cluster_.GenerateEventually(LongAnswer()).ids;
  const std::map<std::string, pid_t> before = cluster_.pids();
  for (const int64_t step : {kHour, -kHour}) {
    SCOPED_TRACE(step);
    ExpectNoStreamEnds([&] {
      const auto prompt = BeginLongPrompt();
      const auto answer = BeginLongAnswer();
      StepTo(step);
      ExpectUnharmed(answer->answer(), long_answer);
      ExpectUnharmed(prompt->answer(), long_prompt);
      // And while it goes back.
      const auto another = BeginLongPrompt();
      StepTo(0);
      ExpectUnharmed(another->answer(), long_prompt);
    });
  }
  ExpectServiceAgain();
  EXPECT_EQ(cluster_.pids(), before);
}

}  // namespace
}  // namespace runahead
