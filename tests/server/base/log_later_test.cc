#include "server/base/log_later.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

std::string SaidSoFar() {
  FlushLog();
  std::string said = ::testing::internal::GetCapturedStderr();
  ::testing::internal::CaptureStderr();
  return said;
}

class LogLaterTest : public ::testing::Test {
 protected:
  LogLaterTest() {
    InitLogging("p", LogLevel::kInfo);
    ::testing::internal::CaptureStderr();
  }
  ~LogLaterTest() override { ::testing::internal::GetCapturedStderr(); }
};

TEST_F(LogLaterTest, SaysItsLinesInOrderWhenItEnds) {
  std::optional<LogLater> later(std::in_place);
  later->Info("registry", "worker ", 3, " joined");
  later->Warning("line", "edge broken");
  EXPECT_THAT(SaidSoFar(), IsEmpty());
  later.reset();
  EXPECT_THAT(SaidSoFar(), MatchesRegex("[^\n]* I p \\[registry\\] worker 3 joined\n[^\n]* W p \\[line\\] edge broken\n"));
}

TEST_F(LogLaterTest, LinesThatAnotherTookAreSaidByThatOneOnly) {
  std::optional<LogLater> from(std::in_place), to(std::in_place);
  from->Info("c", "a line");
  to->Take(*from);
  from.reset();
  EXPECT_THAT(SaidSoFar(), IsEmpty());
  to.reset();
  EXPECT_THAT(SaidSoFar(), HasSubstr("[c] a line\n"));
}

TEST_F(LogLaterTest, DropsWhatIsBelowTheLevel) {
  InitLogging("p", LogLevel::kWarning);
  { LogLater().Info("c", "a line"); }
  EXPECT_THAT(SaidSoFar(), IsEmpty());
}

}  // namespace
}  // namespace runahead
