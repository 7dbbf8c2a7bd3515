#include "server/gateway/openai/error.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using Json = nlohmann::json;

Json ErrorOf(const absl::Status& status, const SentMembers& sent = {}) {
  return Json::parse(ToOpenAiError(status, sent).body)["error"];
}

TEST(OpenAiError, IsOneObject) {
  const OpenAiError error = ToOpenAiError(InvalidField("sampling.top_p", "2 is not in (0, 1]"));
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.retry_after, std::nullopt);
  EXPECT_EQ(Json::parse(error.body), Json::parse(R"({"error":{"message":"top_p: 2 is not in (0, 1]",
      "type":"invalid_request_error","param":"top_p","code":"invalid_value"}})"));
}

struct CodeCase {
  absl::StatusCode code;
  int http_status;
  const char* type;
  const char* error_code;  // null: none
};

class OpenAiErrorOfCode : public ::testing::TestWithParam<CodeCase> {};

TEST_P(OpenAiErrorOfCode, HasTheFieldsStatusAndWords) {
  const absl::Status status(GetParam().code, "why it is so");
  EXPECT_EQ(ToOpenAiError(status).http_status, GetParam().http_status);
  const Json error = ErrorOf(status);
  EXPECT_EQ(error["message"], "why it is so");
  EXPECT_EQ(error["type"], GetParam().type);
  EXPECT_EQ(error["param"], nullptr);
  EXPECT_EQ(error["code"], GetParam().error_code == nullptr ? Json() : Json(GetParam().error_code));
}

INSTANTIATE_TEST_SUITE_P(
    Each, OpenAiErrorOfCode,
    ::testing::Values(CodeCase{absl::StatusCode::kInvalidArgument, 400, "invalid_request_error", nullptr},
                      CodeCase{absl::StatusCode::kOutOfRange, 400, "invalid_request_error", nullptr},
                      CodeCase{absl::StatusCode::kNotFound, 404, "invalid_request_error", "not_found"},
                      CodeCase{absl::StatusCode::kUnauthenticated, 401, "invalid_request_error", "invalid_api_key"},
                      CodeCase{absl::StatusCode::kPermissionDenied, 403, "permission_error", "permission_denied"},
                      CodeCase{absl::StatusCode::kResourceExhausted, 429, "rate_limit_error", "rate_limit_exceeded"},
                      CodeCase{absl::StatusCode::kUnavailable, 503, "server_error", "unavailable"},
                      CodeCase{absl::StatusCode::kDeadlineExceeded, 504, "server_error", "timeout"},
                      CodeCase{absl::StatusCode::kCancelled, 499, "server_error", "cancelled"},
                      CodeCase{absl::StatusCode::kUnimplemented, 501, "server_error", "not_implemented"},
                      CodeCase{absl::StatusCode::kInternal, 500, "server_error", nullptr},
                      CodeCase{absl::StatusCode::kUnknown, 500, "server_error", nullptr},
                      CodeCase{absl::StatusCode::kFailedPrecondition, 500, "server_error", nullptr}));

TEST(OpenAiError, MembersAreNamedAsThisDoorHasThem) {
  const std::pair<const char*, const char*> names[] = {
      {"sampling.temperature", "temperature"},
      {"stop.max_tokens", "max_tokens"},
      {"stop.stop[3]", "stop[3]"},
      {"stop.stop_ids[2]", "stop_token_ids[2]"},
      {"stop.stop_ids", "stop_token_ids"},
      {"stop.bad_words[1]", "bad_words[1]"},
      {"sampling.logit_bias[7]", "logit_bias[7]"},
      {"timeout_s", "timeout"},
      {"truncate_prompt", "truncate_prompt_tokens"},
      {"chat.messages[0].role", "messages[0].role"},
      {"chat.tools", "tools"},
      {"chat.template_variables", "chat_template_kwargs"},
      {"chat.continue_final_message", "continue_final_message"},
      {"chat", "messages"},
      {"token_ids.ids[4]", "prompt[4]"},
      {"token_ids.ids", "prompt"},
      {"text", "prompt"},
      {"ids[1]", "tokens[1]"},
      {"prompt", "prompt"},
      {"priority", "priority"},
      {"chat_template", "chat_template"},
      {"stop_token_ids[1]", "stop_token_ids[1]"},
  };
  for (const auto& [field, member] : names) {
    const Json error = ErrorOf(InvalidField(field, "so: and so"));
    EXPECT_EQ(error["param"], member);
    EXPECT_EQ(error["message"], absl::StrCat(member, ": so: and so"));
  }
}

TEST(OpenAiError, AFieldIsNamedAsTheRequestNamedIt) {
  const auto named = [](const char* field, const SentMembers& sent) {
    const Json error = Json::parse(ToOpenAiError(InvalidField(field, "why"), sent).body)["error"];
    EXPECT_EQ(error["message"], absl::StrCat(error["param"].get<std::string>(), ": why"));
    return error["param"].get<std::string>();
  };
  const SentMembers sent{.prompt = "messages", .structure = "guided_choice"};
  EXPECT_EQ(named("prompt", sent), "messages");
  EXPECT_EQ(named("structure.choice", sent), "guided_choice");
  EXPECT_EQ(named("structure.choice[2]", sent), "guided_choice[2]");
  EXPECT_EQ(named("stop.stop[3]", sent), "stop[3]");
  EXPECT_EQ(named("prompt_logprobs", sent), "prompt_logprobs");
  EXPECT_EQ(named("structure.regex", {}), "structure.regex");
  EXPECT_EQ(named("stop.stop[0]", {}), "stop[0]");
  EXPECT_EQ(named("stop.stop[0]", {.one_stop = true}), "stop");
}

TEST(OpenAiError, APlaceInAToolIsNamedAsTheRequestNamedIt) {
  const auto told = [](const char* place, const SentMembers& sent) {
    const absl::Status status = InvalidField("structure.json_schema", absl::StrCat("at ", place, ": why"));
    const Json error = Json::parse(ToOpenAiError(status, sent).body)["error"];
    return absl::StrCat(error["param"].get<std::string>(), "; ", error["message"].get<std::string>());
  };
  const SentMembers all{.structure = "tools"}, third{.structure = "tools", .tool = 2};
  const std::string of_second = "tools[1].function.parameters";
  EXPECT_EQ(told("/$defs/tool1/items", all), absl::StrCat(of_second, "; ", of_second, ": at /items: why"));
  EXPECT_EQ(told("/$defs/tool1", all), absl::StrCat(of_second, "; ", of_second, ": at the root: why"));
  const SentMembers changed{
      .structure = "tools",
      .places = {.kept = {{"/$defs/tool1_objects/anyOf", {2, 5}}}, .made_of = {{"tool1_objects", "tool1"}}}};
  EXPECT_EQ(told("/$defs/tool1_objects/anyOf/1/items", changed),
            absl::StrCat(of_second, "; ", of_second, ": at /anyOf/5/items: why"));
  EXPECT_EQ(told("/$defs/tool1.a/b", all), absl::StrCat(of_second, "; ", of_second, ": at /$defs/a/b: why"));
  EXPECT_EQ(told("/$defs/tool1_definitions.a", all),
            absl::StrCat(of_second, "; ", of_second, ": at /definitions/a: why"));
  EXPECT_EQ(told("/$defs/tool1.definitions.a", all),
            absl::StrCat(of_second, "; ", of_second, ": at /$defs/definitions.a: why"));
  EXPECT_EQ(told("/$defs/tool0/items", third),
            "tools[2].function.parameters; tools[2].function.parameters: at /items: why");
  EXPECT_EQ(told("/$defs/tool1/items", {.structure = "guided_json"}),
            "guided_json; guided_json: at /$defs/tool1/items: why");
  EXPECT_EQ(told("the root", all), "tools; tools: at the root: why");
}

TEST(OpenAiError, ADeadlineOfTheRequestsOwnNamesIt) {
  const Json error = ErrorOf(FieldError(absl::StatusCode::kDeadlineExceeded, "timeout_s", "2 seconds are over"));
  EXPECT_EQ(error["param"], "timeout");
  EXPECT_EQ(error["message"], "timeout: 2 seconds are over");
  EXPECT_EQ(error["code"], "timeout");
}

TEST(OpenAiError, APlaceInTheCallOfAToolNamesTheTool) {
  const auto told = [](const char* message, const SentMembers& sent) {
    return ErrorOf(InvalidField("structure.json_schema", message), sent);
  };
  const Json error = told("at /anyOf/133/properties: too much", {.structure = "tools"});
  EXPECT_EQ(error["param"], "tools[133].function.parameters");
  EXPECT_EQ(error["message"], "tools[133].function.parameters: too much");
  EXPECT_EQ(told("at /anyOf/1: too much", {.structure = "guided_json"})["message"],
            "guided_json: at /anyOf/1: too much");
}

TEST(OpenAiError, OfSeveralPromptsTheOneThatIsMeantIsNamed) {
  const SentMembers second{.prompt = "prompt[1]"};
  EXPECT_EQ(ErrorOf(InvalidField("token_ids.ids[3]", "9 is not in [0, 5)"), second)["param"], "prompt[1][3]");
  EXPECT_EQ(ErrorOf(InvalidField("token_ids.ids", "at least one is needed"), second)["param"], "prompt[1]");
  EXPECT_EQ(ErrorOf(InvalidField("prompt", "it is empty"), second)["message"], "prompt[1]: it is empty");
}

TEST(OpenAiError, AChatOfAModelWithoutAUsableTemplateIsTheRequestsError) {
  const absl::Status none =
      absl::FailedPreconditionError("m.gguf has no chat template; send the prompt as text, or as token ids");
  EXPECT_EQ(ToOpenAiError(none).http_status, 400);
  const Json error = ErrorOf(none);
  EXPECT_EQ(error["message"], std::string(none.message()));
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "messages");
}

TEST(OpenAiError, AFieldIsRenamedWhereTheStatusDoesNotBlameIt) {
  const Json error = ErrorOf(absl::PermissionDeniedError("stop.max_tokens: 9 are more than the key's 5"));
  EXPECT_EQ(error["message"], "max_tokens: 9 are more than the key's 5");
  EXPECT_EQ(error["param"], nullptr);
  EXPECT_EQ(ErrorOf(absl::InternalError("a stop.max_tokens: b"))["message"], "a stop.max_tokens: b");
}

TEST(OpenAiError, APromptThatIsTooLongHasTheFieldsCode) {
  const auto code = [](const char* field, const char* description) {
    return ErrorOf(FieldError(absl::StatusCode::kOutOfRange, field, description))["code"];
  };
  EXPECT_EQ(code("prompt", "900 tokens, and at least 1 of output, are more than the context of 512 tokens"),
            "context_length_exceeded");
  EXPECT_EQ(
      code("stop.max_tokens", "600 and the prompt's 5 tokens are more than the context of 512 tokens; at most 507"),
      "context_length_exceeded");
  EXPECT_EQ(code("token_ids.ids[0]", "9 is not in [0, 5)"), "invalid_value");
}

TEST(OpenAiError, APromptThatIsTooLongHasTheFieldsWords) {
  const Json error =
      ErrorOf(FieldError(absl::StatusCode::kOutOfRange, "prompt",
                         "900 tokens, and at least 1 of output, are more than the context of 512 tokens"));
  EXPECT_EQ(
      error["message"],
      "prompt: 900 tokens, and at least 1 of output, are too many: this model's maximum context length is 512 tokens");
  EXPECT_EQ(error["param"], "prompt");
}

TEST(OpenAiError, AMemberOfPromptLogprobsIsNamedByItself) {
  EXPECT_EQ(ErrorOf(FieldError(absl::StatusCode::kInvalidArgument, "prompt_logprobs", "no"))["param"],
            "prompt_logprobs");
}

TEST(OpenAiError, AModelThatIsNotServed) {
  const absl::Status status = FieldError(absl::StatusCode::kNotFound, "model", "\"x\" is not served here");
  EXPECT_EQ(ErrorOf(status)["code"], "model_not_found");
  EXPECT_EQ(ErrorOf(status)["param"], "model");
}

TEST(OpenAiError, SaysWhenToTryAgain) {
  const absl::Status busy = absl::ResourceExhaustedError("busy");
  EXPECT_EQ(ToOpenAiError(WithRetryAfter(busy, absl::Seconds(3))).retry_after, absl::Seconds(3));
  EXPECT_EQ(ToOpenAiError(busy).retry_after, std::nullopt);
  EXPECT_EQ(ToOpenAiError(absl::UnavailableError("gone")).retry_after, absl::Seconds(1));
}

TEST(OpenAiError, ABrokenMessageIsStillJson) {
  EXPECT_EQ(ErrorOf(absl::InternalError("\xff\"\n"))["message"], "\xef\xbf\xbd\"\n");
}

}  // namespace
}  // namespace runahead
