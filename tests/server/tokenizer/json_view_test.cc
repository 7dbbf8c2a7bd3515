#include "server/tokenizer/json_view.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string JsonRefusal(const std::string& text) {
  const auto view = JsonView::Parse(text, "name");
  EXPECT_EQ(view.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(view.status().message()), HasSubstr("name: "));
  return std::string(view.status().message());
}

TEST(JsonView, ValuesByTheirPlace) {
  const auto root = JsonView::Parse(R"({"a":{"b":[1,"x",true,null,2.5]},"n":null,"t":true})", "name");
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_TRUE(root->IsObject());
  EXPECT_TRUE(root->Has("a"));
  EXPECT_FALSE(root->Has("n"));
  EXPECT_FALSE(root->Has("z"));
  EXPECT_TRUE(*root->GetBool("t", false));
  EXPECT_TRUE(*root->GetBool("z", true));
  std::vector<std::string> places;
  ASSERT_TRUE(root->Get("a")
                  ->Get("b")
                  ->ForElements([&](const JsonView& value) {
                    places.push_back(std::string(value.Error("here").message()));
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_THAT(places, ElementsAre("name.a.b[0]: here", "name.a.b[1]: here", "name.a.b[2]: here", "name.a.b[3]: here",
                                  "name.a.b[4]: here"));
  std::vector<std::string> keys;
  ASSERT_TRUE(root->ForMembers([&](absl::string_view key, const JsonView&) {
                    keys.emplace_back(key);
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_THAT(keys, ElementsAre("a", "n", "t"));
}

TEST(JsonView, WrongTypesNameThePlace) {
  const auto root = *JsonView::Parse(R"({"a":1.5,"b":"x","c":[],"d":18446744073709551615,"e":-3})", "name");
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_EQ(message(root.GetInt("a")), "name.a: must be an integer");
  EXPECT_EQ(message(root.GetInt("d")), "name.d: must be an integer");
  EXPECT_EQ(*root.GetInt("e"), -3);
  EXPECT_EQ(message(root.GetString("c")), "name.c: must be a string");
  EXPECT_EQ(message(root.GetString("z")), "name: 'z' is missing");
  EXPECT_EQ(message(root.GetBool("b", true)), "name.b: must be true or false");
  EXPECT_EQ(message(root.Get("c")->Get("x")), "name.c: is no object");
  EXPECT_EQ(message(root.Get("b")->Number()), "name.b: must be a number");
  EXPECT_EQ(root.Get("b")->ForElements([](const JsonView&) { return absl::OkStatus(); }).message(),
            "name.b: must be an array");
}

TEST(JsonView, HostileTexts) {
  JsonRefusal("");
  JsonRefusal("{\"a\":");
  JsonRefusal("{\"a\":\"\xff\"}");
  JsonRefusal("[1e999]");
  JsonRefusal("nan");
  EXPECT_THAT(JsonRefusal(std::string(1000000, '[')), HasSubstr("nested deeper than 64 at byte 64"));
  EXPECT_THAT(JsonRefusal("[" + std::string(17 << 20, ',') + "]"), HasSubstr("more than 16777216 values"));
  EXPECT_THAT(JsonRefusal(std::string((256 << 20) + 1, ' ')), HasSubstr("bytes; at most"));
  EXPECT_TRUE(JsonView::Parse(std::string("[\"") + std::string(1000, '[') + "\\\"\"]", "name").ok());  // in a string
}

TEST(JsonView, LongKeysAreCutInPlaces) {
  const auto root = *JsonView::Parse("{\"" + std::string(100000, 'k') + "\":1}", "name");
  const absl::Status status =
      root.ForMembers([](absl::string_view, const JsonView& value) { return value.Error("x"); });
  EXPECT_LT(status.message().size(), 100u);
}

TEST(JsonView, AViewKeepsTheText) {
  const auto inner = JsonView::Parse(R"({"a":{"b":"kept"}})", "name")->Get("a");
  EXPECT_EQ(*inner->GetString("b"), "kept");
}

}  // namespace
}  // namespace runahead
