#include "server/gateway/openai/tool_format.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(ToolFormatOf, KnowsItsNames) {
  for (const char* name : {"hermes", "llama3", "json"}) EXPECT_TRUE(ToolFormatOf(name).has_value()) << name;
  for (const char* name : {"", "pythonic", "jsonl", "hermes "}) EXPECT_FALSE(ToolFormatOf(name).has_value()) << name;
}

TEST(ToolFormatOf, TakesAFormFromItsExample) {
  const auto list = ToolFormatOf("json Action: ```json\n[\n  {\"tool_name\": \"NAME\", \"parameters\": {}}\n]\n```");
  ASSERT_TRUE(list.has_value());
  EXPECT_EQ(list->open, "Action: ```json");
  EXPECT_EQ(list->close, "```");
  EXPECT_EQ(list->before, "Action: ```json\n[\n  ");
  EXPECT_EQ(list->behind, "\n]\n```");
  EXPECT_EQ(list->name_key, "tool_name");
  EXPECT_EQ(list->arguments_key, "parameters");
  EXPECT_FALSE(list->nested);
  const auto nested = ToolFormatOf(R"(json {"type": "function", "function": {"name": "NAME", "input": {}}})");
  ASSERT_TRUE(nested.has_value());
  EXPECT_EQ(nested->open, "");
  EXPECT_EQ(nested->arguments_key, "input");
  EXPECT_TRUE(nested->nested && nested->typed);
}

TEST(ToolFormatOf, RefusesAnExampleThatIsNone) {
  for (const char* name : {"json ", "json }{", "json {", "json [1]", "json {\"name\": \"NAME\"}", "json {}",
                           "json {\"arguments\": {}}", "json {\"a\": {\"name\": \"\", \"arguments\": {}}}"}) {
    EXPECT_FALSE(ToolFormatOf(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace runahead
