#include "server/gateway/openai/json_slice.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JsonSlice Slice(absl::string_view text) {
  const absl::StatusOr<JsonSlice> slice = JsonSlice::Check(text);
  EXPECT_TRUE(slice.ok()) << slice.status();
  return *slice;
}

std::string SliceRefusal(const std::string& text) {
  const absl::StatusOr<JsonSlice> slice = JsonSlice::Check(text);
  EXPECT_EQ(slice.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(slice.status().message());
}

TEST(JsonSlice, MembersComeInTheOrderOfTheTextAsTheyAreWritten) {
  const JsonSlice object = Slice(
      " \n{ \"z\" : [1, {\"]\": \"}\\\"\"}] ,\t\"a\":{ \"b\" : 1.0e2 },\"s\":\"x,}\" , "
      "\"n\":null,\"t\":true,\"i\":-3} ");
  std::vector<std::string> members;
  ASSERT_TRUE(object
                  .ForMembers([&](std::string key, JsonSlice value) {
                    members.push_back(key + "=" + std::string(value.text()));
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_THAT(members,
              ElementsAre("z=[1, {\"]\": \"}\\\"\"}]", "a={ \"b\" : 1.0e2 }", "s=\"x,}\"", "n=null", "t=true", "i=-3"));
}

TEST(JsonSlice, ElementsComeInOrderAndAnErrorEndsThem) {
  std::vector<std::string> elements;
  const absl::Status status = Slice("[ [], {} ,\"a\" , 1,2]").ForElements([&](JsonSlice value) {
    elements.push_back(std::string(value.text()));
    return elements.size() == 4 ? absl::InternalError("enough") : absl::OkStatus();
  });
  EXPECT_EQ(status.message(), "enough");
  EXPECT_THAT(elements, ElementsAre("[]", "{}", "\"a\"", "1"));
}

TEST(JsonSlice, NothingIsInWhatIsEmpty) {
  for (const char* text : {"{}", "[]", "{ \n}", "[ ]", "\"\""}) {
    EXPECT_TRUE(Slice(text).IsEmpty()) << text;
  }
  for (const char* text : {"{\"a\":1}", "[0]", "\" \"", "0", "null", "false"}) {
    EXPECT_FALSE(Slice(text).IsEmpty()) << text;
  }
  const auto never = [](auto&&...) { return absl::InternalError("called"); };
  EXPECT_TRUE(Slice("[ ]").ForElements(never).ok());
  EXPECT_TRUE(Slice("{ }").ForMembers(never).ok());
}

TEST(JsonSlice, StringsAreDecoded) {
  EXPECT_EQ(Slice("\"plain \xc3\xa4\"").String(), "plain \xc3\xa4");
  EXPECT_EQ(Slice(R"("a\"\\\/\n\u00e4\ud83d\ude00\u0000b")").String(),
            std::string("a\"\\/\n\xc3\xa4\xf0\x9f\x98\x80\0b", 13));
}

TEST(JsonSlice, WholeNumbersHoweverTheyAreWritten) {
  EXPECT_EQ(Slice("-7").Integer(), -7);
  EXPECT_EQ(Slice("1e3").Integer(), 1000);
  EXPECT_EQ(Slice("16.0").Integer(), 16);
  EXPECT_EQ(Slice("9223372036854775807").Integer(), 9223372036854775807);
  for (const char* text : {"1.5", "1e300", "9223372036854775808", "-1e-3"}) {
    EXPECT_EQ(Slice(text).Integer(), std::nullopt) << text;
  }
}

TEST(JsonSlice, WhatIsNoJsonIsRefusedWithItsPlace) {
  EXPECT_EQ(SliceRefusal(""), "it is no JSON, at byte 1");
  EXPECT_EQ(SliceRefusal("{\"a\":1,}"), "it is no JSON, at byte 8");
  for (const char* text : {"{\"a\":NaN}", "[Infinity]", "[1] 2", "{'a':1}", "[01]", "nul", "[1,]", "\"a", "// c\n1",
                           "\"\t\"", "{\"a\" 1}"}) {
    EXPECT_THAT(SliceRefusal(text), HasSubstr("it is no JSON")) << text;
  }
  EXPECT_THAT(SliceRefusal("[1e999]"), HasSubstr("a number is too large"));
  EXPECT_THAT(SliceRefusal("[" + std::string(400, '9') + "]"), HasSubstr("a number is too large"));
}

TEST(JsonSlice, StringsThatAreNoUnicodeAreRefused) {
  for (const char* text :
       {"\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\""}) {
    EXPECT_THAT(SliceRefusal(text), HasSubstr("it is no JSON")) << text;
  }
}

TEST(JsonSlice, DepthIsBounded) {
  EXPECT_TRUE(JsonSlice::Check(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_EQ(SliceRefusal(std::string(65, '[') + std::string(65, ']')), "it is nested deeper than 64");
  EXPECT_EQ(SliceRefusal(std::string(1000000, '[')), "it is nested deeper than 64");
  std::string objects;
  for (int i = 0; i < 65; ++i) objects += "{\"a\":";
  EXPECT_EQ(SliceRefusal(objects), "it is nested deeper than 64");
}

TEST(JsonSlice, AMarkOfByteOrderIsSkipped) {
  EXPECT_EQ(Slice("\xef\xbb\xbf [1]").text(), "[1]");
}

}  // namespace
}  // namespace runahead
