#include "client/bench/prompt_file.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/bench/workload.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

using PromptJson = nlohmann::json;

template <typename... Parts>
absl::Status InLine(int line, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", parts...));
}

absl::StatusOr<std::vector<BenchMessage>> ReadMessages(const PromptJson& json, int line) {
  if (!json.is_array() || json.empty()) return InLine(line, "\"messages\" is no list of messages");
  std::vector<BenchMessage> messages;
  for (const PromptJson& message : json) {
    const bool whole = message.is_object() && message.contains("role") && message["role"].is_string() &&
                       message.contains("content") && message["content"].is_string();
    if (!whole) return InLine(line, "a message needs \"role\" and \"content\", both texts");
    messages.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
  }
  return messages;
}

absl::Status ReadMaxTokens(const PromptJson& json, int line, int32_t& max_tokens) {
  if (!json.contains("max_tokens")) return absl::OkStatus();
  const PromptJson& value = json["max_tokens"];
  const bool in_range =
      value.is_number_integer() && value.get<double>() >= 1 && value.get<double>() <= kMostBenchTokens;
  if (!in_range) return InLine(line, "\"max_tokens\" is no whole number from 1 to ", kMostBenchTokens);
  max_tokens = value.get<int32_t>();
  return absl::OkStatus();
}

absl::StatusOr<BenchRequest> ReadPromptLine(absl::string_view text, int line, int32_t max_tokens) {
  const PromptJson json = PromptJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InLine(line, "is no JSON object");
  if (json.contains("prompt") == json.contains("messages")) {
    return InLine(line, "exactly one of \"prompt\" and \"messages\" is needed");
  }
  BenchRequest request;
  request.max_tokens = max_tokens;
  RUNAHEAD_RETURN_IF_ERROR(ReadMaxTokens(json, line, request.max_tokens));
  if (json.contains("messages")) {
    RUNAHEAD_ASSIGN_OR_RETURN(request.messages, ReadMessages(json["messages"], line));
    return request;
  }
  const PromptJson& prompt = json["prompt"];
  if (!prompt.is_string() || prompt.get_ref<const std::string&>().empty()) return InLine(line, "\"prompt\" is no text");
  request.prompt = prompt.get<std::string>();
  return request;
}

}  // namespace

absl::StatusOr<std::vector<BenchRequest>> ReadPromptLines(absl::string_view text, int32_t max_tokens, bool ignore_eos) {
  std::vector<BenchRequest> requests;
  int line = 0;
  for (absl::string_view one : absl::StrSplit(text, '\n')) {
    ++line;
    one = absl::StripAsciiWhitespace(one);
    if (one.empty()) continue;
    RUNAHEAD_ASSIGN_OR_RETURN(BenchRequest request, ReadPromptLine(one, line, max_tokens));
    request.ignore_eos = ignore_eos;
    requests.push_back(std::move(request));
  }
  if (requests.empty()) return absl::InvalidArgumentError("has no line with a prompt");
  return requests;
}

}  // namespace runahead
