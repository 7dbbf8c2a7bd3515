#include "client/base/parse.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ParseIds, TakesNumbersBetweenCommas) {
  EXPECT_THAT(*ParseIds("1,2,3"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*ParseIds(" 7 , 0"), ElementsAre(7, 0));
  EXPECT_THAT(*ParseIds("-1,2147483647"), ElementsAre(-1, 2147483647)) << "the service says what is out of range";
  EXPECT_THAT(*ParseIds(""), IsEmpty());
}

TEST(ParseIds, RefusesWhatIsNoNumber) {
  for (const char* const text : {"1,", ",1", "1,,2", "a", "1 2", "1.5", "2147483648", "0x10"}) {
    const auto ids = ParseIds(text);
    ASSERT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(ids.status().message(), HasSubstr("1,2,3")) << text;
  }
}

TEST(ParseMessage, SplitsAtTheFirstColon) {
  const auto message = ParseMessage("user:What is 1:2? ");
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->role(), "user");
  EXPECT_EQ(message->content(), "What is 1:2? ");
  EXPECT_EQ(ParseMessage("assistant:")->content(), "");
}

TEST(ParseMessage, RefusesTextWithoutRole) {
  EXPECT_THAT(ParseMessage("hello").status().message(), HasSubstr("'hello' has no role"));
  EXPECT_THAT(ParseMessage(":hello").status().message(), HasSubstr("has no role"));
  EXPECT_THAT(ParseMessage("user:\xff").status().message(), HasSubstr("UTF-8 at byte 5"));
}

TEST(CheckUtf8, NamesTheByte) {
  EXPECT_TRUE(CheckUtf8("").ok());
  EXPECT_TRUE(CheckUtf8("Chào, 世界 👩‍💻").ok());
  EXPECT_THAT(CheckUtf8("ab\xc3").message(), HasSubstr("at byte 2"));
  EXPECT_THAT(CheckUtf8("\x80").message(), HasSubstr("at byte 0"));
}

}  // namespace
}  // namespace runahead
