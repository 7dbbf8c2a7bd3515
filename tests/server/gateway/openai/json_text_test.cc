#include "server/gateway/openai/json_text.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(JsonText, StringsAreQuoted) {
  EXPECT_EQ(JsonString("a\"\\\n\xc3\xa4"), "\"a\\\"\\\\\\n\xc3\xa4\"");
  EXPECT_EQ(JsonString(std::string("\0", 1)), "\"\\u0000\"");
  EXPECT_EQ(JsonString("\xff"), "\"\xef\xbf\xbd\"");
}

TEST(JsonText, NumbersAreAsShortAsTheyCanBe) {
  EXPECT_EQ(JsonNumber(-0.1f), "-0.1");
  EXPECT_EQ(JsonNumber(0.1), "0.1");
  EXPECT_EQ(JsonNumber(0.0), "0");
}

TEST(JsonText, WhatIsNoNumberIsNull) {
  EXPECT_EQ(JsonNumber(std::numeric_limits<float>::quiet_NaN()), "null");
  EXPECT_EQ(JsonNumber(std::numeric_limits<double>::infinity()), "null");
}

TEST(JsonText, ValuesAreJoined) {
  std::string inside;
  AddToJson(inside, "1");
  AddToJson(inside, "\"\"");
  EXPECT_EQ(inside, "1,\"\"");
}

}  // namespace
}  // namespace runahead
