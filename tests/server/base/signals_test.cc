#include "server/base/signals.h"

#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"
#include "server/base/logging.h"
#include "tests/testing/await.h"

namespace runahead {
namespace {

TEST(StopSignal, EitherSignalEndsTheWait) {
  for (const int signal : {SIGTERM, SIGINT}) {
    StopSignal stop;
    EXPECT_FALSE(stop.Wait(absl::ZeroDuration()));
    kill(getpid(), signal);
    EXPECT_TRUE(stop.Wait());
    EXPECT_TRUE(stop.Wait());
  }
}

TEST(StopSignal, WaitKeepsItsTimeout) {
  StopSignal stop;
  EXPECT_FALSE(stop.Wait(absl::Milliseconds(1)));
}

TEST(StopSignal, SignalsOfTheLogChangeItsLevelAndStopNothing) {
  InitLogging("p", LogLevel::kInfo);
  StopSignal stop;
  kill(getpid(), SIGUSR1);
  EXPECT_TRUE(testing::Await("the level is debug", [] { return LogEnabled(LogLevel::kDebug); }));
  kill(getpid(), SIGUSR2);
  EXPECT_TRUE(testing::Await("the level is back", [] { return !LogEnabled(LogLevel::kDebug); }));
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));
  EXPECT_FALSE(stop.Wait(absl::ZeroDuration()));
  kill(getpid(), SIGTERM);
  EXPECT_TRUE(stop.Wait());
}

TEST(StopSignalDeathTest, ASecondSignalEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        StopSignal stop;
        kill(getpid(), SIGINT);
        stop.Wait();
        kill(getpid(), SIGINT);
        pause();
      },
      ::testing::ExitedWithCode(128 + SIGINT), "");
}

TEST(StopSignalDeathTest, ASignalEndsTheProcessAtOnceWhileItStarts) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        StopSignal stop;
        stop.EndAtOnce(true);
        kill(getpid(), SIGTERM);
        pause();
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(StopSignal, ASignalEndsTheWaitOnceStartingIsOver) {
  StopSignal stop;
  stop.EndAtOnce(true);
  stop.EndAtOnce(false);
  kill(getpid(), SIGTERM);
  EXPECT_TRUE(stop.Wait());
}

}  // namespace
}  // namespace runahead
