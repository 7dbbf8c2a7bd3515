#include "server/gateway/openai/tool_call_object.h"

#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace runahead {
namespace {

// One letter for each character behind the first bracket: what it is. Ends with the object.
std::string PartsOf(const std::string& text, std::string* name = nullptr, bool generic = false) {
  ToolCallObject object;
  object.Begin(generic);
  std::string parts;
  for (const char c : text) {
    const ToolCallObject::Part part = object.Take(c);
    parts += part == ToolCallObject::Part::kOther       ? '.'
             : part == ToolCallObject::Part::kArguments ? 'a'
             : part == ToolCallObject::Part::kClosed    ? 'c'
                                                        : 'b';
    if (part == ToolCallObject::Part::kClosed) break;
  }
  if (name != nullptr) *name = object.name();
  return parts;
}

std::string Dots(size_t count) {
  return std::string(count, '.');
}

TEST(ToolCallObject, ArgumentsBehindTheNameAreToldCharacterByCharacter) {
  std::string name;
  EXPECT_EQ(PartsOf(R"("name":"f","arguments":{"a":[1]}})", &name), Dots(23) + "baaaaaaaac");
  EXPECT_EQ(name, "f");
  EXPECT_EQ(PartsOf(R"("name":"f","parameters":{}} more)"), Dots(24) + "bac");
}

TEST(ToolCallObject, BracketsAndQuotesInTextsAreText) {
  EXPECT_EQ(PartsOf(R"("name":"}","arguments":{"\"}":"{"}})"), Dots(23) + "baaaaaaaaaac");
}

TEST(ToolCallObject, OfAnyModelHasItsKeysAndItsFunction) {
  std::string name;
  EXPECT_EQ(PartsOf(R"("tool_name":"f","input":{"a":1}})", &name, /*generic=*/true), Dots(24) + "baaaaaac");
  EXPECT_EQ(name, "f");
  EXPECT_EQ(PartsOf(R"("function":{"name":"g","arguments":{}},"id":"}"})", &name, /*generic=*/true),
            Dots(35) + "ba" + Dots(10) + "c");
  EXPECT_EQ(name, "g");
  for (const char* text : {R"("tool_name":"f","input":{}})", R"("function":{"name":"g","arguments":{}}})"}) {
    EXPECT_EQ(PartsOf(text), Dots(strlen(text) - 1) + "c") << text;
  }
  // No deeper than that.
  const std::string deep = R"("function":{"function":{"name":"g","arguments":{}}}})";
  EXPECT_EQ(PartsOf(deep, nullptr, /*generic=*/true), Dots(deep.size() - 1) + "c");
}

TEST(ToolCallObject, WithoutTheNameBeforeThemNoneAreTold) {
  for (const char* text :
       {R"("arguments":{},"name":"f"})", R"("name":"","arguments":{}})", R"("name":5,"arguments":{}})",
        R"("arguments":{}})", R"("x":{"name":"f","arguments":{}}})"}) {
    const std::string parts = PartsOf(text);
    EXPECT_EQ(parts, Dots(parts.size() - 1) + "c") << text;
  }
}

TEST(ToolCallObject, WhatIsNoObjectOfArgumentsIsNotTold) {
  for (const char* text :
       {R"("name":"f","arguments":"{}"})", R"("name":"f","arguments":[{}]})", R"("name":"f","arguments" {}})",
        R"("name":"f" "arguments":{}})", R"(x"name":"f","arguments":{}})"}) {
    const std::string parts = PartsOf(text);
    EXPECT_EQ(parts.find_first_of("ab"), std::string::npos) << text;
    EXPECT_EQ(parts.back(), 'c') << text;
  }
}

TEST(ToolCallObject, OnlyTheFirstArgumentsAreTold) {
  EXPECT_EQ(PartsOf(R"("name":"f","arguments":{},"arguments":{}})"), Dots(23) + "ba" + Dots(15) + "c");
}

TEST(ToolCallObject, ALongTextIsNoName) {
  const std::string parts = PartsOf("\"name\":\"" + std::string(5000, 'x') + R"(","arguments":{}})");
  EXPECT_EQ(parts.find_first_of("ab"), std::string::npos);
}

}  // namespace
}  // namespace runahead
