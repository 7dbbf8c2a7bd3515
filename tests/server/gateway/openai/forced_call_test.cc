#include "server/gateway/openai/forced_call.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/error.h"
#include "server/grammar/structure_spec.h"
#include "server/rpc/status.h"
#include "server/rpc/structure_proto.h"

namespace runahead {
namespace {

constexpr char kTwoTools[] = R"([
  {"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},
      "required":["a"],"$defs":{"n":{"type":"integer"}}}}},
  {"type":"function","function":{"name":"stop"}}])";

// `text` outlives what is returned.
std::vector<GivenTool> ToolsOf(absl::string_view text) {
  const absl::StatusOr<JsonSlice> json = JsonSlice::Check(text);
  EXPECT_TRUE(json.ok()) << json.status() << text;
  const absl::StatusOr<std::vector<GivenTool>> tools = ReadToolList(*json);
  EXPECT_TRUE(tools.ok()) << tools.status();
  return *tools;
}

absl::StatusOr<v1::Structure> StructureOf(const absl::StatusOr<ForcedForm>& form) {
  if (!form.ok()) return form.status();
  return form->structure;
}

absl::StatusOr<v1::Structure> ForcedCallOf(absl::string_view tools, const char* format) {
  return StructureOf(ForcedCall(ToolsOf(tools), 0, *ToolFormatOf(format)));
}

// Of tool `index` alone.
absl::StatusOr<v1::Structure> ForcedCallOfOne(absl::string_view tools, int index, const char* format) {
  const std::vector<GivenTool> all = ToolsOf(tools);
  return StructureOf(
      ForcedCall(absl::MakeConstSpan(&all[static_cast<size_t>(index)], 1), index, *ToolFormatOf(format)));
}

TEST(ForcedCall, IsOneCallAsTheModelWritesIt) {
  const auto hermes = ForcedCallOfOne(kTwoTools, 0, "hermes");
  ASSERT_TRUE(hermes.ok()) << hermes.status();
  EXPECT_EQ(hermes->before(), "<tool_call>\n");
  EXPECT_EQ(hermes->behind(), "\n</tool_call>");
  EXPECT_EQ(hermes->json_schema(),
            R"({"type":"object","properties":{"name":{"const":"add"},"arguments":{"$ref":"#/$defs/tool0"}},)"
            R"("required":["name","arguments"],"$defs":{"tool0.n":{"type":"integer"},"tool0":{"type":"object",)"
            R"("properties":{"a":{"$ref":"#/$defs/tool0.n"}},"required":["a"]}}})");
  const auto llama = ForcedCallOf(kTwoTools, "llama3");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->before(), "");
  for (const auto& structure : {*hermes, *llama}) {
    const absl::Status status = CheckStructure(*StructureFromProto(structure));
    EXPECT_TRUE(status.ok()) << status << structure.json_schema();
  }
}

TEST(ForcedCall, HasTheFormThatTheTemplateWrites) {
  const auto list =
      ForcedCallOfOne(kTwoTools, 1, "json Action: ```json\n[{\"tool_name\": \"NAME\", \"input\": {}}]\n```");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->before(), "Action: ```json\n[");
  EXPECT_EQ(list->behind(), "]\n```");
  EXPECT_EQ(list->json_schema(),
            R"({"type":"object","properties":{"tool_name":{"const":"stop"},"input":{"$ref":"#/$defs/tool0"}},)"
            R"("required":["tool_name","input"],"$defs":{"tool0":{"type":"object"}}})");
  const auto nested =
      ForcedCallOfOne(kTwoTools, 1, R"(json {"type": "function", "function": {"name": "NAME", "arguments": {}}})");
  ASSERT_TRUE(nested.ok()) << nested.status();
  EXPECT_EQ(nested->json_schema(),
            R"({"type":"object","properties":{"type":{"const":"function"},"function":{"type":"object","properties":)"
            R"({"name":{"const":"stop"},"arguments":{"$ref":"#/$defs/tool0"}},"required":["name","arguments"]}},)"
            R"("required":["type","function"],"$defs":{"tool0":{"type":"object"}}})");
  for (const auto& structure : {*list, *nested}) {
    const absl::Status status = CheckStructure(*StructureFromProto(structure));
    EXPECT_TRUE(status.ok()) << status << structure.json_schema();
  }
}

// What the arguments of a tool with these parameters may be.
std::string ArgumentsOf(const std::string& parameters) {
  const std::string tools = absl::StrCat(R"([{"function":{"name":"f","parameters":)", parameters, R"(}}])");
  const auto forced = ForcedCallOf(tools, "hermes");
  EXPECT_TRUE(forced.ok()) << forced.status();
  if (!forced.ok()) return "";
  const absl::Status status = CheckStructure(*StructureFromProto(*forced));
  EXPECT_TRUE(status.ok()) << status << forced->json_schema();
  return nlohmann::ordered_json::parse(forced->json_schema())["$defs"]["tool0"].dump();
}

TEST(ForcedCall, ArgumentsAreAnyObjectWhereNothingIsSaidOfThem) {
  for (const char* parameters : {"{}", "true", "null", R"({"type":"object"})"}) {
    EXPECT_EQ(ArgumentsOf(parameters), R"({"type":"object"})") << parameters;
  }
}

TEST(ForcedCall, WhatIsHeldToObjectsIsAForm) {
  for (const char* parameters :
       {R"({"type":["object","string"],"minLength":3})", R"({"anyOf":[{"type":"null"},{"type":"object"}]})",
        R"({"oneOf":[{"type":"array"},{"properties":{"a":{}}}]})", R"({"allOf":[{"enum":[1,{"a":2}]}]})",
        R"({"$ref":"#/$defs/a","$defs":{"a":{"type":["object","null"],"properties":{"b":{"$ref":"#/$defs/a"}}}}})",
        R"({"type":["object","null"],"properties":{"const":{"$ref":"#"}}})",
        R"({"type":"object","properties":{"p":{"const":{"$ref":"#/$defs/none"}}},"default":{"$ref":"none"}})"}) {
    EXPECT_NE(ArgumentsOf(parameters), "") << parameters;
  }
}

TEST(ForcedCall, NamesTheToolWhoseArgumentsCanBeNoObject) {
  for (const char* parameters : {"false", R"({"type":"string"})", R"({"enum":["a",1]})"}) {
    const std::string tools =
        absl::StrCat(R"([{"function":{"name":"f"}},{"function":{"name":"g","parameters":)", parameters, R"(}}])");
    const absl::Status status = ForcedCallOf(tools, "hermes").status();
    EXPECT_EQ(BlamedField(status), "tools[1].function.parameters") << parameters;
    EXPECT_EQ(status.message(), "tools[1].function.parameters: no object is of this schema; arguments are one");
    EXPECT_EQ(BlamedField(ForcedCallOfOne(tools, 1, "hermes").status()), "tools[1].function.parameters");
  }
}

TEST(ForcedCall, WhatIsRefusedInItIsToldAsTheRequestHasIt) {
  const std::string bad = R"({"type":"object","properties":{"a: b":{"type":"array","uniqueItems":true}}})";
  const std::string why = ": the keyword \"uniqueItems\" is not supported";
  for (const auto& [parameters, place] : std::vector<std::pair<std::string, std::string>>{
           {R"({"anyOf":[{"type":"null"},{"type":"string"},@]})", "/anyOf/2"},
           {R"({"anyOf":[{"type":"null"},{"oneOf":[false,{"type":"null"},@]}]})", "/anyOf/1/oneOf/2"},
           {R"({"type":["object","null"],"anyOf":[{"type":"null"},@],"$defs":{"r":{"$ref":"#"}}})", "/anyOf/1"},
           {R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[true,{"type":"null"},@]}}})", "/$defs/a/anyOf/2"},
           {R"({"$ref":"#/definitions/a","definitions":{"a":{"type":["null","object"],"allOf":[@]}}})",
            "/definitions/a/allOf/0"}}) {
    const std::string tools = absl::StrCat(R"([{"function":{"name":"f"}},{"function":{"name":"g","parameters":)",
                                           absl::StrReplaceAll(parameters, {{"@", bad}}), "}}]");
    const absl::StatusOr<ForcedForm> form = ForcedCall(ToolsOf(tools), 0, *ToolFormatOf("hermes"));
    ASSERT_TRUE(form.ok()) << form.status();
    const absl::Status status = CheckStructure(*StructureFromProto(form->structure));
    const SentMembers sent{.structure = "tools", .places = form->places};
    const auto error = nlohmann::json::parse(
        ToOpenAiError(InvalidField("structure.json_schema", status.message().substr(23)), sent).body)["error"];
    EXPECT_EQ(error["message"], absl::StrCat("tools[1].function.parameters: at ", place, "/properties/a: b", why));
  }
}

TEST(ForcedCall, ToolsOfFarTooManyBytesAreRefusedAtOnce) {
  std::string tools = R"([{"function":{"name":"f"}})";
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&tools, R"(,{"function":{"name":"g)", i, "\"}}");
  const absl::Status status = ForcedCallOf(tools + "]", "hermes").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("have more than 131072 bytes"));
  const std::string one = absl::StrCat(R"([{"function":{"name":"f","parameters":{"title":")",
                                       std::string(size_t{1} << 17, 'x'), R"("}}}])");
  EXPECT_EQ(BlamedField(ForcedCallOf(one, "hermes").status()), "tools[0].function.parameters");
}

}  // namespace
}  // namespace runahead
