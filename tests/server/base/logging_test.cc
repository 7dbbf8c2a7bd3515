#include "server/base/logging.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

template <typename Function>
std::string StderrOf(Function function) {
  ::testing::internal::CaptureStderr();
  function();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Logging, LinesCarryTimeLevelProcessAndComponent) {
  InitLogging("prefill-0", LogLevel::kInfo);
  const std::string line = StderrOf([] { LogWarning("link", "edge to ", "prefill-1", " took ", 3, " ms"); });
  EXPECT_THAT(line, MatchesRegex("[0-9-]+T[0-9:.]+Z W prefill-0 \\[link\\] edge to prefill-1 took 3 ms\n"));
}

TEST(Logging, DropsWhatIsBelowTheLevel) {
  InitLogging("p", LogLevel::kWarning);
  EXPECT_THAT(StderrOf([] { LogInfo("c", "x"); }), IsEmpty());
  EXPECT_THAT(StderrOf([] { LogError("c", "x"); }), HasSubstr(" E p [c] x"));
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  EXPECT_TRUE(LogEnabled(LogLevel::kWarning));
}

TEST(Logging, TextFromOutsideCannotForgeLines) {
  InitLogging("p", LogLevel::kInfo);
  const std::string line = StderrOf([] { LogInfo("c", "a\nb\x1b[2J{}%s é"); });
  EXPECT_THAT(line, HasSubstr("a\\nb\\x1b[2J{}%s é\n"));
}

TEST(Logging, LevelsByName) {
  EXPECT_EQ(*ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(*ParseLogLevel("error"), LogLevel::kError);
  EXPECT_THAT(std::string(ParseLogLevel("loud").status().message()), AllOf(HasSubstr("'loud'"), HasSubstr("warning")));
}

}  // namespace
}  // namespace runahead
