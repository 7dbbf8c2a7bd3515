// Refusals of requests, of which the router says a part, as a client sees them.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/gateway/gateway_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

class GatewayRefusals : public testing::GatewayFixture {
 protected:
  // The error of what is refused with 400.
  nlohmann::json Refused(const std::string& path, const std::string& body) {
    const auto reply = Post(path, body);
    EXPECT_TRUE(reply);
    if (!reply) return {};
    EXPECT_EQ(reply->status, 400) << reply->body;
    const auto json = nlohmann::json::parse(reply->body, nullptr, /*allow_exceptions=*/false);
    return json.is_object() ? json["error"] : nlohmann::json::object();
  }
};

TEST_F(GatewayRefusals, OfSeveralPromptsTheRefusedOneIsNamed) {
  StartGateway();
  for (const auto& [prompt, param] :
       std::vector<std::pair<std::string, std::string>>{{"[[1],[2,99999999]]", "prompt[1][1]"},
                                                        {"[\"a\",\"\"]", "prompt[1]"},
                                                        {"[\"\"]", "prompt[0]"},
                                                        {"[99999999]", "prompt[0]"},
                                                        {"\"\"", "prompt"}}) {
    EXPECT_EQ(Refused("/v1/completions", absl::StrCat("{\"prompt\":", prompt, "}"))["param"], param) << prompt;
  }
}

TEST_F(GatewayRefusals, AChatToAModelWithoutATemplateIsTheRequestsErrorAlsoWithTools) {
  chat_template_ = absl::FailedPreconditionError("it has no chat template; send the prompt as text, or as token ids");
  StartGateway();
  const std::string chat = R"("messages":[{"role":"user","content":"hi"}])";
  const std::string tools = R"(,"tools":[{"function":{"name":"f"}}])";
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/chat/completions", chat},
           {"/v1/chat/completions", chat + tools},
           {"/v1/chat/completions", chat + tools + R"(,"tool_choice":"required","stream":true)"},
           {"/tokenize", chat}}) {
    nlohmann::json error = Refused(path, absl::StrCat("{", body, "}"));
    EXPECT_EQ(error["param"], "messages") << body;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_THAT(error["message"].dump(), HasSubstr("it has no chat template")) << body;
  }
}

TEST_F(GatewayRefusals, ToolsOfAModelWithATemplateInNoKnownFormAreRefused) {
  StartGateway();
  EXPECT_EQ(Refused("/v1/chat/completions",
                    R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"function":{"name":"f"}}]})")["param"],
            "tools");
}

}  // namespace
}  // namespace runahead
