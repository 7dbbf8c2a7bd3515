#include "server/base/logging.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

template <typename Function>
std::string StderrOf(Function function) {
  ::testing::internal::CaptureStderr();
  function();
  FlushLog();
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
  EXPECT_THAT(StderrOf([] { LogInfo("c", "Mod\xe8le \u009b31m"); }), HasSubstr("Mod\\xe8le \\xc2\\x9b31m\n"));
}

// Quotes, a backslash, line ends, control characters, a NUL, bytes that are no UTF-8, and letters.
const std::string kHostile("\"q\" \\ a\nb\r\t\x1b[2J\0 \xff\xc3( é", 23);
const std::string kHostileMended("\"q\" \\ a\nb\r\t\x1b[2J\0 \xef\xbf\xbd\xef\xbf\xbd( é", 27);

TEST(Logging, FieldsFollowTheMessageAsText) {
  InitLogging("p", LogLevel::kInfo);
  const std::string line = StderrOf([] {
    Log(LogLevel::kInfo, "c", "said",
        {{"count", int64_t{-3}},
         {"took_s", 0.25},
         {"word", "kvr-even"},
         {"text", "two words"},
         {"none", ""},
         {"parts", std::vector<int64_t>{700, 324}},
         {"names", std::vector<std::string>{"a", "b c"}},
         {"stages", std::vector<std::pair<std::string, double>>{{"queue", 0.5}, {"plan", 2}}}});
  });
  EXPECT_THAT(line,
              EndsWith(" I p [c] said count=-3 took_s=0.25 word=kvr-even text=\"two words\" none=\"\" parts=700,324 "
                       "names=a,\"b c\" stages=queue:0.5,plan:2\n"));
}

TEST(Logging, TextOfAFieldCannotForgeLinesOrFields) {
  InitLogging("p", LogLevel::kInfo);
  const std::string line = StderrOf([] { Log(LogLevel::kInfo, "c", "said", {{"text", kHostile}}); });
  EXPECT_THAT(line, EndsWith("said text=\"\\\"q\\\" \\\\ a\\nb\\r\\t\\x1b[2J\\x00 \\xff\\xc3( é\"\n"));
}

TEST(Logging, AsJsonEveryLineIsAnObjectWithRealFields) {
  InitLogging("prefill \"0\" %v", LogLevel::kInfo, LogFormat::kJson);
  const std::string line = StderrOf([] {
    Log(LogLevel::kWarning, "link", "said",
        {{"count", int64_t{-3}},
         {"took_s", 0.25},
         {"no_number", std::numeric_limits<double>::quiet_NaN()},
         {"text", "two words"},
         {"parts", std::vector<int64_t>{700, 324}},
         {"names", std::vector<std::string>{"a", "b c"}},
         {"stages", std::vector<std::pair<std::string, double>>{{"queue", 0.5}}}});
  });
  const nlohmann::json json = nlohmann::json::parse(line);
  EXPECT_THAT(json["time"].get<std::string>(), MatchesRegex("[0-9-]+T[0-9:.]+Z"));
  nlohmann::json rest = json;
  rest.erase("time");
  EXPECT_EQ(rest, nlohmann::json::parse(R"({"level": "warning", "process": "prefill \"0\" %v", "component": "link",
      "message": "said", "count": -3, "took_s": 0.25, "no_number": null, "text": "two words", "parts": [700, 324],
      "names": ["a", "b c"], "stages": {"queue": 0.5}})"));
}

TEST(Logging, AsJsonHostileTextIsOneValidLine) {
  InitLogging("p", LogLevel::kInfo, LogFormat::kJson);
  const std::string line = StderrOf([] {
    Log(LogLevel::kInfo, "c", kHostile, {{"text", kHostile}, {"%d{}", kHostile}});
  });
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const nlohmann::json json = nlohmann::json::parse(line);
  EXPECT_EQ(json["message"], kHostileMended);
  EXPECT_EQ(json["text"], kHostileMended);
  EXPECT_EQ(json["%d{}"], kHostileMended);
}

TEST(Logging, TheLevelMovesByOneAndSaysSoWhateverIsDropped) {
  InitLogging("p", LogLevel::kWarning);
  EXPECT_THAT(StderrOf([] { ChangeLogLevel(LogChange::kMore); }), HasSubstr(" I p [log] the log level is info now\n"));
  EXPECT_THAT(StderrOf([] { LogInfo("c", "x"); }), HasSubstr("[c] x"));
  for (const char* const level : {"warning", "error", "error"}) {
    EXPECT_THAT(StderrOf([] { ChangeLogLevel(LogChange::kLess); }), HasSubstr(absl::StrCat("is ", level, " now")));
  }
  EXPECT_FALSE(LogEnabled(LogLevel::kWarning));
  for (const char* const level : {"warning", "info", "debug", "debug"}) {
    EXPECT_THAT(StderrOf([] { ChangeLogLevel(LogChange::kMore); }), HasSubstr(absl::StrCat("is ", level, " now")));
  }
  EXPECT_TRUE(LogEnabled(LogLevel::kDebug));
}

TEST(Logging, LevelsByName) {
  EXPECT_EQ(*ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(*ParseLogLevel("error"), LogLevel::kError);
  EXPECT_THAT(std::string(ParseLogLevel("loud").status().message()), AllOf(HasSubstr("'loud'"), HasSubstr("warning")));
}

}  // namespace
}  // namespace runahead
