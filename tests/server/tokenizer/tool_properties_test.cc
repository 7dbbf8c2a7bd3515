#include "server/tokenizer/tool_properties.h"

#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/tokenizer/chat_values.h"
#include "server/tokenizer/jinja/template.h"

namespace runahead {
namespace {

jinja::Value ValueOf(const std::string& json) {
  const absl::StatusOr<jinja::Value> value = JsonValues(json);
  EXPECT_TRUE(value.ok()) << value.status() << json;
  return value.value_or(jinja::None());
}

std::string Json(const jinja::Value& value) {
  const auto writer = jinja::Template::Parse("{{ value | tojson }}");
  EXPECT_TRUE(writer.ok()) << writer.status();
  const absl::StatusOr<MarkedText> text = writer->Render({{"value", value}}, absl::UnixEpoch(), Always);
  EXPECT_TRUE(text.ok()) << text.status();
  return ToUtf8(*text);
}

// The tools with properties; "as they came" where they are not changed.
std::string WithProperties(const std::string& tools) {
  const std::optional<jinja::Value> changed = ToolsWithProperties(ValueOf(tools));
  return changed ? Json(*changed) : "as they came";
}

TEST(ToolProperties, AreAddedWhereThereAreNone) {
  const std::string some = R"({"type": "object", "properties": {}})";
  EXPECT_EQ(WithProperties(R"([{"type": "function", "function": {"name": "f"}}])"),
            R"([{"type": "function", "function": {"name": "f", "parameters": )" + some + "}}]");
  for (const char* parameters : {"null", "true", "{}", "[]", R"({"type": null})"}) {
    EXPECT_EQ(WithProperties(R"([{"function": {"parameters": )" + std::string(parameters) + R"(, "name": "f"}}])"),
              R"([{"function": {"parameters": )" + some + R"(, "name": "f"}}])")
        << parameters;
  }
  EXPECT_EQ(WithProperties(R"([{"name": "f"}])"), R"([{"name": "f", "parameters": )" + some + "}]");
}

TEST(ToolProperties, WhatElseStandsInParametersStaysInItsOrder) {
  EXPECT_EQ(WithProperties(R"([{"function": {"parameters": {"z": 1, "properties": null, "a": 2, "type": "array"}}}])"),
            R"([{"function": {"parameters": {"z": 1, "properties": {}, "a": 2, "type": "array"}}}])");
}

TEST(ToolProperties, ToolsThatHaveSomeAndWhatIsNoToolStay) {
  for (const char* tools : {R"([{"function": {"parameters": {"properties": {}}}}])",
                            R"([{"parameters": {"properties": {"a": true}}}])", "[]", "[1, null]", "{}", "null"}) {
    EXPECT_EQ(WithProperties(tools), "as they came") << tools;
  }
  EXPECT_EQ(WithProperties(R"([{"parameters": {"properties": {}}}, 1, {}])"),
            R"([{"parameters": {"properties": {}}}, 1, {"parameters": {"type": "object", "properties": {}}}])");
}

// However much it is, it costs nothing.
TEST(ToolProperties, WhatStandsBesideThemIsNotCopied) {
  const jinja::Value tools = ValueOf(R"([{"function": {"name": "f", "parameters": {"$defs": {"a": true}}},
                                          "extra": {"b": 1}}])");
  const std::optional<jinja::Value> changed = ToolsWithProperties(tools);
  ASSERT_TRUE(changed.has_value());
  const auto tool = [](const jinja::Value& list) {
    return jinja::As<jinja::Dict>(jinja::As<jinja::List>(list)->items[0]);
  };
  const auto member = [](const jinja::Dict* dict, const char* name) {
    return jinja::As<jinja::Dict>(*dict->Get(name));
  };
  EXPECT_EQ(member(tool(tools), "extra"), member(tool(*changed), "extra"));
  const auto definitions = [&](const jinja::Value& list) {
    return member(member(member(tool(list), "function"), "parameters"), "$defs");
  };
  EXPECT_EQ(definitions(tools), definitions(*changed));
}

}  // namespace
}  // namespace runahead
