#include "server/gateway/openai/tool_call_object.h"

#include <string>

#include "gtest/gtest.h"

namespace runahead {
namespace {

// One letter for each character behind the first bracket: what it is. Ends with the object.
std::string PartsOf(const std::string& text, std::string* name = nullptr) {
  ToolCallObject object;
  object.Begin();
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
