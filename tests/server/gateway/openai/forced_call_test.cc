#include "server/gateway/openai/forced_call.h"

#include <string>

#include "gtest/gtest.h"
#include "server/grammar/structure_spec.h"
#include "server/rpc/status.h"
#include "server/rpc/structure_proto.h"

namespace runahead {
namespace {

constexpr char kTwoTools[] = R"([
  {"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},
      "required":["a"],"$defs":{"n":{"type":"integer"}}}}},
  {"type":"function","function":{"name":"stop"}}])";

TEST(ForcedCall, IsOneCallAsTheModelWritesIt) {
  const auto hermes = ForcedCall(kTwoTools, "add", *ToolFormatOf("hermes"));
  ASSERT_TRUE(hermes.ok()) << hermes.status();
  EXPECT_EQ(hermes->before(), "<tool_call>\n");
  EXPECT_EQ(hermes->behind(), "\n</tool_call>");
  EXPECT_EQ(hermes->json_schema(),
            R"({"type":"object","properties":{"name":{"const":"add"},"arguments":{"$ref":"#/$defs/tool0"}},)"
            R"("required":["name","arguments"],"$defs":{"tool0.n":{"type":"integer"},"tool0":{"type":"object",)"
            R"("properties":{"a":{"$ref":"#/$defs/tool0.n"}},"required":["a"]}}})");
  const auto llama = ForcedCall(kTwoTools, std::nullopt, *ToolFormatOf("llama3"));
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->before(), "");
  for (const auto& structure : {*hermes, *llama}) {
    const absl::Status status = CheckStructure(*StructureFromProto(structure));
    EXPECT_TRUE(status.ok()) << status << structure.json_schema();
  }
}

TEST(ForcedCall, HasTheFormThatTheTemplateWrites) {
  const auto list = ForcedCall(kTwoTools, "stop",
                               *ToolFormatOf("json Action: ```json\n[{\"tool_name\": \"NAME\", \"input\": {}}]\n```"));
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->before(), "Action: ```json\n[");
  EXPECT_EQ(list->behind(), "]\n```");
  EXPECT_EQ(list->json_schema(),
            R"({"type":"object","properties":{"tool_name":{"const":"stop"},"input":{"$ref":"#/$defs/tool0"}},)"
            R"("required":["tool_name","input"],"$defs":{"tool0":{"type":"object"}}})");
  const auto nested = ForcedCall(
      kTwoTools, "stop", *ToolFormatOf(R"(json {"type": "function", "function": {"name": "NAME", "arguments": {}}})"));
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

TEST(ForcedCall, RefusesWhatCannotBeCalled) {
  EXPECT_EQ(BlamedField(ForcedCall(kTwoTools, "other", *ToolFormatOf("hermes")).status()), "tool_choice");
  EXPECT_EQ(BlamedField(ForcedCall("[1]", std::nullopt, *ToolFormatOf("hermes")).status()), "tools[0].function");
  EXPECT_EQ(BlamedField(ForcedCall(R"([{"function":{}}])", std::nullopt, *ToolFormatOf("hermes")).status()),
            "tools[0].function.name");
}

}  // namespace
}  // namespace runahead
