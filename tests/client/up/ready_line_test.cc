#include "client/up/ready_line.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(ReadyLine, TakesBothAddresses) {
  const auto ready = ParseReadyLine(R"({"address":"127.0.0.1:12","metrics":"[::1]:13","later":[1]})");
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->address, "127.0.0.1:12");
  EXPECT_EQ(ready->metrics, "[::1]:13");
}

TEST(ReadyLine, SaysWhatIsWrong) {
  const auto problem = [](const char* line) { return std::string(ParseReadyLine(line).status().message()); };
  EXPECT_THAT(problem(""), HasSubstr("is no JSON object"));
  EXPECT_THAT(problem("ready\a!"), HasSubstr("ready line 'ready\\x07!' is no JSON object"));
  EXPECT_THAT(problem("[1]"), HasSubstr("is no JSON object"));
  EXPECT_THAT(problem(R"({"address":"127.0.0.1:12"})"), HasSubstr("has no text 'metrics'"));
  EXPECT_THAT(problem(R"({"address":12,"metrics":"127.0.0.1:1"})"), HasSubstr("has no text 'address'"));
  EXPECT_THAT(problem(R"({"address":"here","metrics":"127.0.0.1:1"})"), HasSubstr("has a wrong 'address'"));
  EXPECT_THAT(problem(R"({"address":"127.0.0.1:0","metrics":"127.0.0.1:1"})"), HasSubstr("port 0"));
}

}  // namespace
}  // namespace runahead
