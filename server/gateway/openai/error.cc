#include "server/gateway/openai/error.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/gateway/openai/json_text.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr absl::Duration kTrySoon = absl::Seconds(1);

struct ErrorKind {
  int http_status;
  const char* type;
  const char* code;  // null where the field has none
};

// A field of the public service and what this door calls it. What stands behind it stays: "[0].role".
struct MemberName {
  absl::string_view field;
  absl::string_view member;
};

constexpr MemberName kMemberNames[] = {
    {"sampling.", ""}, {"stop.stop_ids", "stop_token_ids"},
    {"stop.", ""},     {"chat.template_variables", "chat_template_kwargs"},
    {"chat.", ""},
};

// Fields that have another name as a whole only: others begin alike.
constexpr MemberName kWholeNames[] = {
    {"chat", "messages"},
    {"text", "prompt"},
    {"token_ids.ids", "prompt"},
    {"token_ids", "prompt"},
    {"ids", "tokens"},
    {"timeout_s", "timeout"},
    {"truncate_prompt", "truncate_prompt_tokens"},
};

// "guided_choice[2]" of "structure.choice[2]".
std::string StructureMember(absl::string_view field, absl::string_view sent) {
  const size_t index = field.find('[');
  return absl::StrCat(sent, index == absl::string_view::npos ? "" : field.substr(index));
}

// The schema of a forced call has those of the tools' parameters among its definitions, each by the names that
// DefineArguments gives it. A place in it, "at /$defs/tool1.size/items: ..", is told as the request has it: of
// tools[1].function.parameters, "at /$defs/size/items: ..". A place in the call itself, "at /anyOf/1/properties: ..",
// is none that the request has: it says the tool only.
struct ToolPlace {
  std::string member;
  std::string message;
};

std::optional<ToolPlace> PlaceInTool(absl::string_view message, const SentMembers& sent) {
  if (sent.structure != "tools" || !absl::ConsumePrefix(&message, "at ")) return std::nullopt;
  const std::string given = GivenPlace(message, sent.places);
  message = given;
  const bool of_call = absl::ConsumePrefix(&message, "/anyOf/");
  if (!of_call && !absl::ConsumePrefix(&message, "/$defs/tool")) return std::nullopt;
  const size_t digits = std::min(message.find_first_not_of("0123456789"), message.size());
  int tool = 0;
  if (!absl::SimpleAtoi(message.substr(0, digits), &tool)) return std::nullopt;
  message.remove_prefix(digits);
  const std::string member = absl::StrCat("tools[", sent.tool + tool, "].function.parameters");
  if (of_call) {
    const size_t colon = message.find(": ");
    if (colon == absl::string_view::npos) return std::nullopt;
    return ToolPlace{member, std::string(message.substr(colon + 2))};
  }
  std::string root;
  if (absl::ConsumePrefix(&message, "_definitions.")) {
    root = "/definitions/";
  } else if (absl::ConsumePrefix(&message, ".")) {
    root = "/$defs/";
  } else if (absl::StartsWith(message, ":")) {
    root = "the root";
  }
  return ToolPlace{member, absl::StrCat("at ", root, message)};
}

std::string MemberOf(absl::string_view field, const SentMembers& sent) {
  if (field == "prompt" && !sent.prompt.empty()) return sent.prompt;
  if (field == "stop.stop[0]" && sent.one_stop) return "stop";
  if (absl::StartsWith(field, "structure.") && !sent.structure.empty()) return StructureMember(field, sent.structure);
  for (const MemberName& name : kWholeNames) {
    const absl::string_view rest = field.substr(std::min(name.field.size(), field.size()));
    if (!absl::StartsWith(field, name.field) || (!rest.empty() && rest[0] != '[')) continue;
    const bool is_prompt = name.member == "prompt" && !sent.prompt.empty();
    return absl::StrCat(is_prompt ? absl::string_view(sent.prompt) : name.member, rest);
  }
  for (const MemberName& name : kMemberNames) {
    if (!absl::StartsWith(field, name.field)) continue;
    return absl::StrCat(name.member, field.substr(name.field.size()));
  }
  return std::string(field);
}

bool IsFieldCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '[' || c == ']';
}

// The field that a message begins with, "sampling.top_p" of "sampling.top_p: 2 is not in (0, 1]"; empty: with none.
absl::string_view LeadingField(absl::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos) return "";
  for (const char c : message.substr(0, colon)) {
    if (!IsFieldCharacter(c)) return "";
  }
  return message.substr(0, colon);
}

// The router's words for a prompt, with or without its output, that is longer than the context.
constexpr char kTooLong[] = " are more than the context of ";
// The field's, in which clients that know no codes look for it.
constexpr char kTooLongOfTheField[] = " are too many: this model's maximum context length is ";

bool IsTooLong(const absl::Status& status) {
  return absl::IsOutOfRange(status) && absl::StrContains(status.message(), kTooLong);
}

// The router's words where the model's chat template cannot be used, or there is none: the request can do without.
constexpr char kNoTemplate[] = "; send the prompt as text, or as token ids";

bool HasNoTemplate(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && absl::EndsWith(status.message(), kNoTemplate);
}

ErrorKind KindOf(const absl::Status& status, absl::string_view field) {
  if (HasNoTemplate(status)) return {400, "invalid_request_error", nullptr};
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      if (IsTooLong(status)) return {400, "invalid_request_error", "context_length_exceeded"};
      return {400, "invalid_request_error", field.empty() ? nullptr : "invalid_value"};
    case absl::StatusCode::kNotFound:
      return {404, "invalid_request_error", field == "model" ? "model_not_found" : "not_found"};
    case absl::StatusCode::kUnauthenticated:
      return {401, "invalid_request_error", "invalid_api_key"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error", "permission_denied"};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error", "rate_limit_exceeded"};
    case absl::StatusCode::kUnavailable:
      return {503, "server_error", "unavailable"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "server_error", "timeout"};
    case absl::StatusCode::kCancelled:
      return {499, "server_error", "cancelled"};
    case absl::StatusCode::kUnimplemented:
      return {501, "server_error", "not_implemented"};
    default:
      return {500, "server_error", nullptr};
  }
}

std::string TextOrNull(absl::string_view text) {
  return text.empty() ? "null" : JsonString(text);
}

}  // namespace

OpenAiError ToOpenAiError(const absl::Status& status, const SentMembers& sent) {
  absl::string_view message = status.message();
  const absl::string_view leading = LeadingField(message);
  const std::optional<std::string> blamed = BlamedField(status);
  std::string param = blamed.has_value() ? MemberOf(*blamed, sent) : "";
  if (HasNoTemplate(status)) param = "messages";
  std::string text(message);
  if (!leading.empty()) text = absl::StrCat(MemberOf(leading, sent), message.substr(leading.size()));
  if (leading == "structure.json_schema") {
    if (const auto place = PlaceInTool(message.substr(leading.size() + 2), sent)) {
      param = place->member;
      text = absl::StrCat(place->member, ": ", place->message);
    }
  }
  if (IsTooLong(status)) text = absl::StrReplaceAll(text, {{kTooLong, kTooLongOfTheField}});
  const ErrorKind kind = KindOf(status, param);
  OpenAiError error;
  error.http_status = kind.http_status;
  error.body = absl::StrCat("{\"error\":{\"message\":", JsonString(text), ",\"type\":\"", kind.type,
                            "\",\"param\":", TextOrNull(param),
                            ",\"code\":", TextOrNull(kind.code == nullptr ? "" : kind.code), "}}");
  error.retry_after = RetryAfter(status);
  if (!error.retry_after.has_value() && absl::IsUnavailable(status)) error.retry_after = kTrySoon;
  return error;
}

}  // namespace runahead
