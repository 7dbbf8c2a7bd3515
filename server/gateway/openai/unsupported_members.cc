#include "server/gateway/openai/unsupported_members.h"

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// The value of a member that asks for nothing, beside null.
enum class Idle { kNone, kFalse, kTrue, kOne, kEmpty };

struct UnsupportedMember {
  absl::string_view key;
  Idle idle;
};

constexpr UnsupportedMember kUnsupported[] = {
    {"allowed_token_ids", Idle::kEmpty},
    {"audio", Idle::kNone},
    {"best_of", Idle::kOne},
    {"cache_salt", Idle::kEmpty},
    {"chat_template", Idle::kNone},
    {"documents", Idle::kEmpty},
    {"early_stopping", Idle::kFalse},
    {"functions", Idle::kEmpty},
    {"include_reasoning", Idle::kTrue},
    {"include_stop_str_in_output", Idle::kFalse},
    {"kv_transfer_params", Idle::kEmpty},
    {"length_penalty", Idle::kOne},
    {"logits_processors", Idle::kEmpty},
    {"mm_processor_kwargs", Idle::kEmpty},
    {"prediction", Idle::kNone},
    {"prompt_embeds", Idle::kNone},
    {"reasoning_effort", Idle::kNone},
    {"return_token_ids", Idle::kFalse},
    {"return_tokens_as_token_ids", Idle::kFalse},
    {"skip_special_tokens", Idle::kTrue},
    {"structural_tag", Idle::kNone},
    {"suffix", Idle::kEmpty},
    {"use_beam_search", Idle::kFalse},
    {"verbosity", Idle::kNone},
    {"vllm_xargs", Idle::kEmpty},
    {"web_search_options", Idle::kNone},
};

// They say who asks, what is kept of it elsewhere, or how something is done that is not asked for.
constexpr absl::string_view kWithoutEffect[] = {
    "chat_template_content_format",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "metadata",
    "parallel_tool_calls",  // of a completion; a chat's is read with its tools
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "spaces_between_special_tokens",
    "store",
};

bool AsksForNothing(JsonSlice value, Idle idle) {
  const bool is_bool = value.kind() == JsonSlice::Kind::kBool;
  const bool is_number = value.kind() == JsonSlice::Kind::kNumber;
  switch (idle) {
    case Idle::kNone:
      return false;
    case Idle::kFalse:
      return is_bool && !value.Bool();
    case Idle::kTrue:
      return is_bool && value.Bool();
    case Idle::kOne:
      return is_number && value.Number() == 1;
    case Idle::kEmpty:
      return value.IsEmpty();
  }
  return false;
}

absl::Status NotSupported(absl::string_view key) {
  return InvalidField(key, "it is not supported here; leave it out");
}

absl::Status RefuseUnless(JsonObject& body, absl::string_view key, Idle idle) {
  const std::optional<JsonSlice> value = body.Find(key);
  if (!value.has_value() || AsksForNothing(*value, idle)) return absl::OkStatus();
  return NotSupported(key);
}

absl::Status CheckModalities(JsonObject& body) {
  const std::optional<JsonSlice> value = body.Find("modalities");
  if (!value.has_value()) return absl::OkStatus();
  if (value->kind() != JsonSlice::Kind::kArray) return body.Wrong("modalities", *value, "an array of strings");
  return value->ForElements([](JsonSlice element) {
    if (element.kind() == JsonSlice::Kind::kString && element.String() == "text") return absl::OkStatus();
    return InvalidField("modalities", "none is supported here but \"text\"");
  });
}

absl::Status CheckFunctionCall(JsonObject& body) {
  const std::optional<JsonSlice> value = body.Find("function_call");
  if (!value.has_value()) return absl::OkStatus();
  // Without functions these call none.
  const bool calls_none =
      value->kind() == JsonSlice::Kind::kString && (value->String() == "none" || value->String() == "auto");
  return calls_none ? absl::OkStatus() : NotSupported("function_call");
}

}  // namespace

absl::Status RefuseUnsupported(JsonObject& body, bool chat) {
  for (const absl::string_view key : kWithoutEffect) body.Find(key);
  for (const UnsupportedMember& member : kUnsupported) {
    RUNAHEAD_RETURN_IF_ERROR(RefuseUnless(body, member.key, member.idle));
  }
  // A chat's special tokens come from its template, a prompt's from the model; and a chat has no echo.
  RUNAHEAD_RETURN_IF_ERROR(RefuseUnless(body, "add_special_tokens", chat ? Idle::kFalse : Idle::kTrue));
  if (chat) RUNAHEAD_RETURN_IF_ERROR(RefuseUnless(body, "echo", Idle::kFalse));
  RUNAHEAD_RETURN_IF_ERROR(CheckModalities(body));
  return CheckFunctionCall(body);
}

}  // namespace runahead
