#include "worker/format/json_value.h"

#include <limits>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

std::string JsonRefusal(const std::string& text, const JsonLimits& limits = {}) {
  const auto value = ParseJson(text, "a.json: the text", limits);
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(value.status().message());
}

TEST(JsonValue, GettersGiveWhatIsThere) {
  const auto value = ParseJson(R"({"n":null,"b":true,"i":-7,"f":1.5,"e":1e2,"t":"x\u0000y","a":[1,[2]],"o":{}})", "a");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_TRUE(value->Find("n")->is_null());
  EXPECT_TRUE(*value->Find("b")->boolean());
  EXPECT_EQ(*value->Find("i")->integer(), -7);
  EXPECT_EQ(value->Find("i")->number(), -7.0);
  EXPECT_EQ(value->Find("f")->number(), 1.5);
  EXPECT_EQ(value->Find("f")->integer(), nullptr);
  EXPECT_EQ(value->Find("e")->integer(), nullptr);
  EXPECT_EQ(value->Find("e")->number(), 100.0);
  EXPECT_EQ(*value->Find("t")->text(), std::string("x\0y", 3));
  ASSERT_EQ(value->Find("a")->array()->size(), 2u);
  EXPECT_EQ(*value->Find("a")->array()->back().array()->front().integer(), 2);
  EXPECT_TRUE(value->Find("o")->object()->empty());
  EXPECT_EQ(value->Find("none"), nullptr);
  EXPECT_EQ(value->Find("a")->Find("x"), nullptr);
  EXPECT_EQ(value->Find("t")->number(), std::nullopt);
}

TEST(JsonValue, NumbersThatFitNoIntegerAreNone) {
  const auto value =
      ParseJson("[9223372036854775807, 9223372036854775808, 99999999999999999999, -9223372036854775808]", "a");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value->array()->at(0).integer(), 9223372036854775807);
  for (const int i : {1, 2}) {
    EXPECT_EQ(value->array()->at(i).integer(), nullptr);
    EXPECT_GT(value->array()->at(i).number(), 9e18);
    EXPECT_TRUE(value->array()->at(i).is_large_integer());
  }
  EXPECT_FALSE(ParseJson("1e22", "a")->is_large_integer());
  EXPECT_EQ(ParseJson("1e22", "a")->number(), 1e22);
  EXPECT_EQ(*value->array()->at(3).integer(), std::numeric_limits<int64_t>::min());
}

TEST(JsonValue, LimitsAreReachedAndNotPassed) {
  EXPECT_TRUE(ParseJson("[[{}]]", "a", {.depth = 3}).ok());
  EXPECT_EQ(JsonRefusal("[[{\"a\":[]}]]", {.depth = 3}), "a.json: the text is nested deeper than 3");
  EXPECT_TRUE(ParseJson("[1,{\"a\":2}]", "a", {.values = 4}).ok());
  EXPECT_EQ(JsonRefusal("[1,{\"a\":2},3]", {.values = 4}), "a.json: the text has more than 4 values");
  EXPECT_EQ(JsonRefusal("[[],[],[],[]]", {.values = 4}), "a.json: the text has more than 4 values");
}

TEST(JsonValue, NamesAreThereOnce) {
  EXPECT_EQ(JsonRefusal(R"({"b":1,"a":2,"b":3})"), "a.json: the text has 'b' twice in one object");
  EXPECT_EQ(JsonRefusal(R"([{"a":{"x":1,"x":1}}])"), "a.json: the text has 'x' twice in one object");
  EXPECT_TRUE(ParseJson(R"([{"a":{"a":1}},{"a":1}])", "a").ok());
}

TEST(JsonValue, WhatIsNoJsonIsRefusedAtItsByte) {
  EXPECT_EQ(JsonRefusal("{\"a\":tru}"), "a.json: the text is not JSON at byte 9");
  for (const char* text :
       {"", " ", "[1,]", "{\"a\":1,}", "[1] [2]", "[\"\xff\"]", "[1e999]", "[Infinity]", "// a\n[]"}) {
    EXPECT_THAT(JsonRefusal(text), testing::HasSubstr("is not JSON at byte ")) << text;
  }
}

}  // namespace
}  // namespace runahead
