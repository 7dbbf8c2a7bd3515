#include "client/bench/openai_stream.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

using EventJson = nlohmann::json;

// The member of this name; null where `json` is no object, or has none.
const EventJson& Member(const EventJson& json, const char* name) {
  static const EventJson* const kNull = new EventJson();
  if (!json.is_object()) return *kNull;
  const auto found = json.find(name);
  return found == json.end() ? *kNull : *found;
}

// A count of tokens; what is none is as if it were absent.
std::optional<int64_t> Count(const EventJson& json) {
  const double value = json.is_number_integer() ? json.get<double>() : -1;
  if (value < 0 || value > 1e9) return std::nullopt;
  return json.get<int64_t>();
}

void ReadUsage(const EventJson& usage, AnswerCounts& counts) {
  if (const auto count = Count(Member(usage, "prompt_tokens"))) counts.input_tokens = count;
  if (const auto count = Count(Member(usage, "completion_tokens"))) counts.output_tokens = count;
  const EventJson& details = Member(usage, "prompt_tokens_details");
  if (const auto count = Count(Member(details, "cached_tokens"))) counts.cached_tokens = *count;
}

bool IsText(const EventJson& json) {
  return json.is_string() && !json.get_ref<const std::string&>().empty();
}

bool HasToken(const EventJson& choice) {
  const EventJson& text = Member(choice, "text");
  // A token that ends within a character has no text yet, but has come; the last event may be about the end alone.
  if (text.is_string()) return IsText(text) || Member(choice, "finish_reason").is_null();
  const EventJson& delta = Member(choice, "delta");
  for (const char* const name : {"content", "reasoning_content", "reasoning", "refusal"}) {
    if (IsText(Member(delta, name))) return true;
  }
  return !Member(delta, "tool_calls").empty();
}

// {"error": {"message": ..}}, {"error": ".."}, {"message": ..}, {"detail": ..}; empty where it is none of these.
std::string ErrorMessage(const EventJson& json) {
  const EventJson& error = Member(json, "error");
  for (const EventJson* const text :
       {&Member(error, "message"), &error, &Member(json, "message"), &Member(json, "detail")}) {
    if (IsText(*text)) return OneLine(text->get_ref<const std::string&>());
  }
  return "";
}

absl::StatusCode CodeOfHttp(int status) {
  switch (status) {
    case 400:
    case 422:
      return absl::StatusCode::kInvalidArgument;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 408:
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 502:
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::StatusOr<bool> OpenAiStream::Add(absl::string_view data) {
  if (done_) return false;
  if (absl::StripAsciiWhitespace(data) == "[DONE]") {
    done_ = true;
    return false;
  }
  const EventJson json = EventJson::parse(data.begin(), data.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InternalError(absl::StrCat("an event is no JSON object: \"", Printable(data), "\""));
  }
  if (!Member(json, "error").is_null()) {
    const std::string message = ErrorMessage(json);
    return absl::InternalError(absl::StrCat("the stream says: ", message.empty() ? "an error" : message));
  }
  ReadUsage(Member(json, "usage"), counts_);
  const EventJson& choices = Member(json, "choices");
  return choices.is_array() && !choices.empty() && HasToken(choices[0]);
}

absl::Status OpenAiStream::End() const {
  if (done_) return absl::OkStatus();
  return absl::UnavailableError("the stream was cut: it ended without [DONE]");
}

absl::Status HttpFailure(int status, absl::string_view body) {
  const std::string message =
      ErrorMessage(EventJson::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false));
  const std::string said = message.empty() ? OneLine(FirstCharacters(absl::StripAsciiWhitespace(body), 200)) : message;
  return absl::Status(CodeOfHttp(status), absl::StrCat("HTTP ", status, said.empty() ? "" : ": ", said));
}

}  // namespace runahead
