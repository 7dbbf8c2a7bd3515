// POST /v1/completions, as calls.
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/gateway/openai/calls.h"
#include "server/gateway/openai/json_object.h"
#include "server/gateway/openai/request_members.h"
#include "server/gateway/openai/rule_members.h"
#include "server/gateway/openai/sampling_members.h"
#include "server/gateway/openai/structure_members.h"
#include "server/gateway/openai/unsupported_members.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr int kDefaultCompletionTokens = 16;
constexpr int kMaxAlternatives = 20;
constexpr char kPromptAllowed[] = "a string, an array of strings, an array of ids, or an array of arrays of ids";

// One prompt: a text or ids.
struct GivenPrompt {
  std::optional<std::string> text;
  v1::TokenIds ids;
};

std::optional<int32_t> IdOf(JsonSlice value) {
  const std::optional<int64_t> id = value.kind() == JsonSlice::Kind::kNumber ? value.Integer() : std::nullopt;
  if (!id.has_value() || *id < 0 || *id > std::numeric_limits<int32_t>::max()) return std::nullopt;
  return static_cast<int32_t>(*id);
}

// `place` is that of the array.
absl::Status AddId(JsonSlice value, absl::string_view place, v1::TokenIds& ids) {
  const std::optional<int32_t> id = IdOf(value);
  if (!id.has_value()) return WrongValue(absl::StrCat(place, "[", ids.ids_size(), "]"), value, "the id of a token");
  ids.add_ids(*id);
  return absl::OkStatus();
}

absl::StatusOr<GivenPrompt> ReadIds(JsonSlice array, absl::string_view place) {
  GivenPrompt prompt;
  RUNAHEAD_RETURN_IF_ERROR(array.ForElements([&](JsonSlice id) { return AddId(id, place, prompt.ids); }));
  return prompt;
}

// Of prompts that stand in one array; its first element says what they are.
absl::Status AddPrompt(JsonSlice value, JsonSlice::Kind first, std::vector<GivenPrompt>& prompts) {
  const std::string place = absl::StrCat("prompt[", prompts.size(), "]");
  if (value.kind() != first) {
    return WrongValue(place, value, first == JsonSlice::Kind::kString ? "a string" : "an array of ids");
  }
  if (prompts.size() == kMaxAnswers) {
    return InvalidField("prompt", absl::StrCat("more than ", kMaxAnswers, " prompts are not allowed in one request"));
  }
  if (first == JsonSlice::Kind::kString) {
    prompts.push_back({value.String(), {}});
    return absl::OkStatus();
  }
  RUNAHEAD_ASSIGN_OR_RETURN(GivenPrompt prompt, ReadIds(value, place));
  prompts.push_back(std::move(prompt));
  return absl::OkStatus();
}

// `listed`: they stand in an array.
absl::StatusOr<std::vector<GivenPrompt>> ReadPrompts(JsonObject& body, bool& listed) {
  const std::optional<JsonSlice> value = body.Find("prompt");
  if (!value.has_value()) return InvalidField("prompt", absl::StrCat("it is missing; ", kPromptAllowed, " is allowed"));
  if (value->kind() == JsonSlice::Kind::kString) return std::vector<GivenPrompt>{{value->String(), {}}};
  if (value->kind() != JsonSlice::Kind::kArray) return body.Wrong("prompt", *value, kPromptAllowed);
  if (value->IsEmpty()) return InvalidField("prompt", "it is empty");
  std::optional<JsonSlice::Kind> first;
  std::vector<GivenPrompt> prompts;
  RUNAHEAD_RETURN_IF_ERROR(value->ForElements([&](JsonSlice element) {
    if (!first.has_value()) first = element.kind();
    if (first == JsonSlice::Kind::kNumber) {
      if (prompts.empty()) prompts.emplace_back();
      return AddId(element, "prompt", prompts[0].ids);
    }
    if (first == JsonSlice::Kind::kString || first == JsonSlice::Kind::kArray) {
      return AddPrompt(element, *first, prompts);
    }
    return WrongValue("prompt[0]", element, "a string, an id, or an array of ids");
  }));
  listed = first != JsonSlice::Kind::kNumber;
  return prompts;
}

absl::Status ReadCompletionLogprobs(JsonObject& body, OpenAiCalls& calls, v1::SamplingParams& sampling) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> top,
                            body.Integer("logprobs", "an integer from 0 to 20", 0, kMaxAlternatives));
  if (!top.has_value()) return absl::OkStatus();
  calls.logprobs = true;
  calls.top_logprobs = static_cast<int>(*top);
  sampling.set_logprobs(calls.top_logprobs);
  return absl::OkStatus();
}

// echo: the prompt stands before the answer, with logprobs each of its tokens with what the tokens before it gave it.
absl::Status ReadEcho(JsonObject& body, const std::vector<GivenPrompt>& prompts, OpenAiCalls& calls,
                      v1::GenerateRequest& common) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> echo, body.Bool("echo"));
  if (!echo.value_or(false)) return absl::OkStatus();
  calls.echo = true;
  if (calls.logprobs) {
    common.set_prompt_logprobs(calls.top_logprobs);
    return absl::OkStatus();
  }
  for (const GivenPrompt& prompt : prompts) {
    if (!prompt.text.has_value()) {
      return InvalidField("echo", "of a prompt of ids it goes with \"logprobs\" only, which bring the ids' text");
    }
  }
  return absl::OkStatus();
}

// Of each prompt, with all else as `common` has it.
std::vector<v1::GenerateRequest> RequestsOf(const std::vector<GivenPrompt>& prompts,
                                            const v1::GenerateRequest& common) {
  std::vector<v1::GenerateRequest> requests;
  for (const GivenPrompt& prompt : prompts) {
    v1::GenerateRequest& request = requests.emplace_back(common);
    if (prompt.text.has_value()) {
      request.set_prompt(*prompt.text);
    } else {
      *request.mutable_token_ids() = prompt.ids;
    }
  }
  return requests;
}

}  // namespace

absl::StatusOr<OpenAiCalls> ReadCompletionRequest(absl::string_view body, const DoorFacts& facts) {
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject members, JsonObject::ReadBody(body));
  OpenAiCalls calls;
  v1::GenerateRequest common;
  RUNAHEAD_ASSIGN_OR_RETURN(ModelMember model, ReadModel(members, facts));
  common.set_model(std::move(model.asked));
  calls.model = std::move(model.answer);
  RUNAHEAD_RETURN_IF_ERROR(RefuseUnsupported(members, /*chat=*/false));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<GivenPrompt> prompts, ReadPrompts(members, calls.listed_prompts));
  RUNAHEAD_ASSIGN_OR_RETURN(calls.sent.structure, ReadStructureMembers(members, common));
  RUNAHEAD_RETURN_IF_ERROR(ReadSamplingMembers(members, facts, common));
  calls.sent.one_stop = HasOneStop(members);
  RUNAHEAD_RETURN_IF_ERROR(ReadRuleMembers(members, common));
  RUNAHEAD_RETURN_IF_ERROR(ReadCompletionLogprobs(members, calls, *common.mutable_sampling()));
  RUNAHEAD_RETURN_IF_ERROR(ReadEcho(members, prompts, calls, common));
  RUNAHEAD_RETURN_IF_ERROR(ReadStreaming(members, calls));
  RUNAHEAD_RETURN_IF_ERROR(ReadPromptLogprobs(members, calls, common));
  RUNAHEAD_RETURN_IF_ERROR(ReadMaxTokens(members, kDefaultCompletionTokens, calls, *common.mutable_stop()));
  RUNAHEAD_RETURN_IF_ERROR(AddCalls(members, RequestsOf(prompts, common), calls));
  AddIgnored(members, calls);
  return calls;
}

}  // namespace runahead
