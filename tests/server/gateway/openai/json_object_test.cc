#include "server/gateway/openai/json_object.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

JsonObject ReadObject(absl::string_view text) {
  absl::StatusOr<JsonObject> object = JsonObject::ReadBody(text);
  EXPECT_TRUE(object.ok()) << object.status();
  return *std::move(object);
}

TEST(JsonObject, NullIsAsIfItWereAbsent) {
  JsonObject body = ReadObject(R"({"b":null,"s":null,"i":null,"f":null})");
  EXPECT_EQ(*body.Bool("b"), std::nullopt);
  EXPECT_EQ(*body.String("s"), std::nullopt);
  EXPECT_EQ(*body.Integer("i", "an integer", 0, 1), std::nullopt);
  EXPECT_EQ(*body.Float("f", "a number"), std::nullopt);
  EXPECT_EQ(*body.Bool("absent"), std::nullopt);
  EXPECT_THAT(body.Unread(), IsEmpty());
}

TEST(JsonObject, WhatNobodyReadsIsKnownInOrder) {
  JsonObject body = ReadObject("{\"z\":1,\"read\":true,\"a\\n\":null,\"Z\":2}");
  EXPECT_TRUE(body.Bool("read").ok());
  EXPECT_THAT(body.Unread(), ElementsAre("z", "a\\n", "Z"));
}

TEST(JsonObject, AMemberThatIsGivenTwiceIsRefused) {
  const auto said = [](absl::string_view body) { return std::string(JsonObject::ReadBody(body).status().message()); };
  EXPECT_EQ(said(R"({"a":1,"b":2,"a":1})"), "a: it is given twice");
  EXPECT_EQ(said(R"({"a":null,"\u0061":1})"), "a: it is given twice");
  EXPECT_EQ(said(R"({"":1,"":2})"), "\"\": it is given twice");
  EXPECT_EQ(BlamedField(JsonObject::ReadBody(R"({"a":1,"a":2})").status()), "a");
  JsonObject body = ReadObject(R"({"o":{"b":1,"b":2}})");
  EXPECT_EQ(JsonObject::Read(*body.Find("o"), "o").status().message(), "o.b: it is given twice");
}

TEST(JsonObject, WrongTypesSayWhatIsAllowed) {
  JsonObject body = ReadObject(R"({"b":"yes","s":["x"],"i":2.5,"f":true,"big":1e300,"j":{},"out":7})");
  const auto said = [](const auto& result) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(BlamedField(result.status()).has_value());
    return std::string(result.status().message());
  };
  EXPECT_EQ(said(body.Bool("b")), "b: it is a string; true or false is allowed");
  EXPECT_EQ(said(body.String("s")), "s: it is an array; a string is allowed");
  EXPECT_EQ(said(body.Integer("i", "an integer", 0, 9)), "i: it is 2.5; an integer is allowed");
  EXPECT_EQ(said(body.Integer("out", "an integer from 0 to 6", 0, 6)),
            "out: it is 7; an integer from 0 to 6 is allowed");
  EXPECT_EQ(said(body.Float("f", "a number")), "f: it is true; a number is allowed");
  EXPECT_EQ(said(body.Float("big", "a number")), "big: it is 1e300; a number is allowed");
  EXPECT_EQ(said(body.Json("j", JsonSlice::Kind::kArray, "an array")), "j: it is an object; an array is allowed");
}

TEST(JsonObject, ElementsThatAreNoIntegersAreNamed) {
  JsonObject body = ReadObject(R"({"ids":[1,"x"],"far":[3000000000],"one":5})");
  const auto none = [](int64_t) {};
  EXPECT_EQ(body.Integers("ids", 0, 9, none).message(), "ids[1]: it is a string; an integer from 0 to 9 is allowed");
  EXPECT_EQ(body.Integers("far", 0, 9, none).message(), "far[0]: it is 3000000000; an integer from 0 to 9 is allowed");
  EXPECT_EQ(body.Integers("one", 0, 9, none).message(), "one: it is 5; an array of integers is allowed");
}

TEST(JsonObject, MembersOfMembersAreNamedByTheirPlace) {
  JsonObject body = ReadObject(R"({"o":{"b":1}})");
  absl::StatusOr<JsonObject> inner = JsonObject::Read(*body.Find("o"), "o");
  ASSERT_TRUE(inner.ok());
  EXPECT_EQ(inner->Bool("b").status().message(), "o.b: it is 1; true or false is allowed");
}

TEST(JsonObject, ABodyThatIsNoObjectIsRefused) {
  EXPECT_EQ(JsonObject::ReadBody("[]").status().message(), "body: it is an array; an object is allowed");
  EXPECT_EQ(JsonObject::ReadBody("{").status().message(), "body: it is no JSON, at byte 2");
  EXPECT_EQ(BlamedField(JsonObject::ReadBody("{").status()), "body");
}

TEST(JsonObject, MembersAreBounded) {
  const auto with = [](int members) {
    std::string text = "{\"m\":0";
    for (int i = 1; i < members; ++i) absl::StrAppend(&text, ",\"", i, "\":0");
    return JsonObject::ReadBody(text + "}").status();
  };
  EXPECT_TRUE(with(1024).ok());
  EXPECT_EQ(with(1025).message(), "body: it has more than 1024 members");
}

}  // namespace
}  // namespace runahead
