#include "server/gateway/openai/tool_members.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

constexpr char kThree[] =
    R"("tools":[{"type":"function","function":{"name":"f","description":null,"strict":true,"parameters":null}},
        {"function":{"name":"g","parameters":{"type":"object"}},"cache_control":{}},
        {"type":null,"function":{"name":"h","parameters":true}}])";

// "NAME PARAMETERS" of each tool that may be called, and "forced from N" where one must.
std::vector<std::string> Read(const std::string& members, v1::ChatMessages* chat = nullptr) {
  const std::string text = absl::StrCat("{", members, "}");
  absl::StatusOr<JsonObject> body = JsonObject::ReadBody(text);
  EXPECT_TRUE(body.ok()) << body.status();
  v1::ChatMessages own;
  const absl::StatusOr<ToolUse> use = ReadTools(*body, chat == nullptr ? own : *chat);
  if (!use.ok()) {
    EXPECT_EQ(use.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(use.status().message());
    EXPECT_EQ(BlamedField(use.status()), message.substr(0, message.find(": ")));
    return {message};
  }
  std::vector<std::string> read;
  for (const GivenTool& tool : use->tools) {
    read.push_back(absl::StrCat(tool.name, " ", tool.parameters.has_value() ? tool.parameters->text() : "none"));
  }
  if (use->must_call) read.push_back(absl::StrCat("forced from ", use->first));
  return read;
}

TEST(ToolMembers, ThoseThatMayBeCalledAreReadInOrder) {
  EXPECT_THAT(Read(kThree), ElementsAre("f none", R"(g {"type":"object"})", "h true"));
  EXPECT_THAT(Read(absl::StrCat(kThree, R"(,"tool_choice":"required")")),
              ElementsAre("f none", R"(g {"type":"object"})", "h true", "forced from 0"));
  EXPECT_THAT(Read(absl::StrCat(kThree, R"(,"tool_choice":{"type":"function","function":{"name":"g"}})")),
              ElementsAre(R"(g {"type":"object"})", "forced from 1"));
  EXPECT_THAT(Read(absl::StrCat(kThree, R"(,"tool_choice":"none")")), ElementsAre());
  EXPECT_THAT(Read(R"("tools":null)"), ElementsAre());
  EXPECT_THAT(Read(R"("tools":[],"tool_choice":"auto")"), ElementsAre());
}

TEST(ToolMembers, TheChatHasAllOfThemAsTheyCame) {
  v1::ChatMessages chat;
  const std::string tools = R"([{"z": 1, "function": {"name": "f", "parameters": {"properties": {}}}},
                                {"function": {"parameters": {"properties": {"a": 1}}, "name": "g"}}])";
  Read(absl::StrCat("\"tools\":", tools, R"(,"tool_choice":{"function":{"name":"g"}})"), &chat);
  EXPECT_EQ(chat.tools(), tools);
  chat.clear_tools();
  Read(absl::StrCat(kThree, R"(,"tool_choice":"none")"), &chat);
  EXPECT_EQ(chat.tools(), "");
}

TEST(ToolMembers, WhatIsNoToolIsRefusedHoweverToolsMayBeCalled) {
  const std::string good = R"({"type":"function","function":{"name":"f"}})";
  for (const auto& [tool, message] : std::vector<std::pair<std::string, std::string>>{
           {"1", "tools[1]: it is 1; an object is allowed"},
           {"null", "tools[1]: it is null; an object is allowed"},
           {"{}", "tools[1].function: it is missing"},
           {R"({"type":"function"})", "tools[1].function: it is missing"},
           {R"({"type":"web_search"})", "tools[1].type: \"web_search\" is not supported here; \"function\" is allowed"},
           {R"({"type":1,"function":{"name":"g"}})", "tools[1].type: it is 1; a string is allowed"},
           {R"({"function":[]})", "tools[1].function: it is an array; an object is allowed"},
           {R"({"function":{}})", "tools[1].function.name: it is missing"},
           {R"({"function":{"name":null}})", "tools[1].function.name: it is missing"},
           {R"({"function":{"name":5}})", "tools[1].function.name: it is 5; a string is allowed"},
           {R"({"function":{"name":""}})", "tools[1].function.name: it is empty"},
           {R"({"function":{"name":"f"}})", "tools[1].function.name: \"f\" is the name of tools[0], too"},
           {R"({"function":{"name":"g","description":5}})",
            "tools[1].function.description: it is 5; a string is allowed"},
           {R"({"function":{"name":"g","parameters":[]}})",
            "tools[1].function.parameters: it is an array; a JSON schema is allowed"},
           {R"({"function":{"name":"g","parameters":"{}"}})",
            "tools[1].function.parameters: it is a string; a JSON schema is allowed"},
           {R"({"function":{"name":"g","parameters":{"properties":{"a":{"const":{"b":1,"b":2}}}}}})",
            "tools[1].function.parameters: at /properties/a/const/b: it is given twice"}}) {
    for (const char* choice : {"null", "\"auto\"", "\"none\"", "\"required\"", R"({"function":{"name":"f"}})"}) {
      EXPECT_THAT(Read(absl::StrCat("\"tools\":[", good, ",", tool, "],\"tool_choice\":", choice)),
                  ElementsAre(message))
          << choice;
    }
  }
}

TEST(ToolMembers, AChoiceOfWhatIsNotThereIsRefused) {
  EXPECT_THAT(Read(absl::StrCat(kThree, R"(,"tool_choice":{"function":{"name":"x\n"}})")),
              ElementsAre("tool_choice: \"x\\n\" is none of the tools"));
  EXPECT_THAT(Read(R"("tools":[],"tool_choice":{"function":{"name":"f"}})"),
              ElementsAre("tool_choice: there are no tools to call"));
}

}  // namespace
}  // namespace runahead
