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
  const auto hermes = ForcedCall(kTwoTools, "add", "hermes");
  ASSERT_TRUE(hermes.ok()) << hermes.status();
  EXPECT_EQ(hermes->before(), "<tool_call>\n");
  EXPECT_EQ(hermes->behind(), "\n</tool_call>");
  EXPECT_EQ(hermes->json_schema(),
            R"({"type":"object","properties":{"name":{"const":"add"},"arguments":{"$ref":"#/$defs/tool0"}},)"
            R"("required":["name","arguments"],"$defs":{"tool0.n":{"type":"integer"},"tool0":{"type":"object",)"
            R"("properties":{"a":{"$ref":"#/$defs/tool0.n"}},"required":["a"]}}})");
  const auto llama = ForcedCall(kTwoTools, std::nullopt, "llama3");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->before(), "");
  for (const auto& structure : {*hermes, *llama}) {
    const absl::Status status = CheckStructure(*StructureFromProto(structure));
    EXPECT_TRUE(status.ok()) << status << structure.json_schema();
  }
}

TEST(ForcedCall, RefusesWhatCannotBeCalled) {
  EXPECT_EQ(BlamedField(ForcedCall(kTwoTools, "other", "hermes").status()), "tool_choice");
  EXPECT_EQ(BlamedField(ForcedCall("[1]", std::nullopt, "hermes").status()), "tools[0].function");
  EXPECT_EQ(BlamedField(ForcedCall(R"([{"function":{}}])", std::nullopt, "hermes").status()), "tools[0].function.name");
}

}  // namespace
}  // namespace runahead
