// POST /v1/chat/completions, as calls.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "kernels/base/status_macros.h"
#include "server/gateway/openai/calls.h"
#include "server/gateway/openai/chat_messages.h"
#include "server/gateway/openai/forced_call.h"
#include "server/gateway/openai/json_object.h"
#include "server/gateway/openai/request_members.h"
#include "server/gateway/openai/rule_members.h"
#include "server/gateway/openai/sampling_members.h"
#include "server/gateway/openai/structure_members.h"
#include "server/gateway/openai/tool_format.h"
#include "server/gateway/openai/tool_members.h"
#include "server/gateway/openai/unsupported_members.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr int kMaxTopLogprobs = 20;

// logprobs and top_logprobs.
absl::Status ReadChatLogprobs(JsonObject& body, OpenAiCalls& calls, v1::SamplingParams& sampling) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> logprobs, body.Bool("logprobs"));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> top,
                            body.Integer("top_logprobs", "an integer from 0 to 20", 0, kMaxTopLogprobs));
  calls.logprobs = logprobs.value_or(false);
  calls.top_logprobs = static_cast<int>(top.value_or(0));
  if (calls.logprobs) {
    sampling.set_logprobs(calls.top_logprobs);
  } else if (calls.top_logprobs > 0) {
    return InvalidField("top_logprobs", "it goes with \"logprobs\": true");
  }
  return absl::OkStatus();
}

// How calls of `tools` come in the answer.
absl::Status ReadCallsAs(const std::string& format, const std::vector<GivenTool>& tools, OpenAiCalls& calls) {
  if (!ToolFormatOf(format).has_value()) {
    return InvalidField(
        "tools", "how this model writes calls is not known here; leave it out, or describe the tools in a message");
  }
  calls.tool_format = format;
  absl::flat_hash_set<std::string> names;
  for (const GivenTool& tool : tools) names.insert(tool.name);
  calls.tool_names = std::make_shared<const absl::flat_hash_set<std::string>>(std::move(names));
  return absl::OkStatus();
}

// response_format and the like, and calls that are forced. An answer of a given form has no thoughts before it.
absl::Status ReadForm(JsonObject& body, const ToolUse& use, OpenAiCalls& calls, v1::GenerateRequest& request) {
  RUNAHEAD_ASSIGN_OR_RETURN(calls.sent.structure, ReadStructureMembers(body, request));
  if (use.must_call) {
    if (request.has_structure()) {
      return InvalidField("tool_choice", "a forced call does not go with another form of the answer");
    }
    RUNAHEAD_ASSIGN_OR_RETURN(ForcedForm forced, ForcedCall(use.tools, use.first, *ToolFormatOf(calls.tool_format)));
    *request.mutable_structure() = std::move(forced.structure);
    calls.sent.structure = "tools";
    calls.sent.places = std::move(forced.places);
  } else if (request.has_structure()) {
    calls.tool_format.clear();  // what looks like a call is the answer
  }
  if (request.has_structure()) calls.reasoning_format.clear();
  return absl::OkStatus();
}

// Where the answer goes on with a message, it begins with nothing that the template opens.
std::string ReasoningFormat(const v1::ChatMessages& chat, const DoorFacts& facts) {
  const bool begins = chat.has_add_generation_prompt() ? chat.add_generation_prompt() : !chat.continue_final_message();
  return begins ? facts.reasoning_format : "";
}

}  // namespace

absl::StatusOr<OpenAiCalls> ReadChatRequest(absl::string_view body, const DoorFacts& facts) {
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject members, JsonObject::ReadBody(body));
  OpenAiCalls calls;
  calls.chat = true;
  calls.sent.prompt = PromptMember(calls.chat);
  v1::GenerateRequest request;
  RUNAHEAD_ASSIGN_OR_RETURN(ModelMember model, ReadModel(members, facts));
  request.set_model(std::move(model.asked));
  calls.model = std::move(model.answer);
  RUNAHEAD_RETURN_IF_ERROR(RefuseUnsupported(members, /*chat=*/true));
  RUNAHEAD_RETURN_IF_ERROR(ReadChatMembers(members, *request.mutable_chat(), calls.ignored));
  RUNAHEAD_ASSIGN_OR_RETURN(const ToolUse use, ReadTools(members, *request.mutable_chat()));
  if (!use.tools.empty()) RUNAHEAD_RETURN_IF_ERROR(ReadCallsAs(facts.tool_format, use.tools, calls));
  calls.sent.tool = use.first;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<bool> parallel, members.Bool("parallel_tool_calls"));
  calls.one_tool_call = !parallel.value_or(true);
  calls.reasoning_format = ReasoningFormat(request.chat(), facts);
  RUNAHEAD_RETURN_IF_ERROR(ReadForm(members, use, calls, request));
  RUNAHEAD_RETURN_IF_ERROR(ReadSamplingMembers(members, facts, request));
  calls.sent.one_stop = HasOneStop(members);
  RUNAHEAD_RETURN_IF_ERROR(ReadRuleMembers(members, request));
  RUNAHEAD_RETURN_IF_ERROR(ReadChatLogprobs(members, calls, *request.mutable_sampling()));
  RUNAHEAD_RETURN_IF_ERROR(ReadStreaming(members, calls));
  RUNAHEAD_RETURN_IF_ERROR(ReadPromptLogprobs(members, calls, request));
  RUNAHEAD_RETURN_IF_ERROR(ReadMaxTokens(members, /*otherwise=*/std::nullopt, calls, *request.mutable_stop()));
  RUNAHEAD_RETURN_IF_ERROR(AddCalls(members, {request}, calls));
  AddIgnored(members, calls);
  return calls;
}

}  // namespace runahead
