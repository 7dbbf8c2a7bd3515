#include "server/gateway/openai/tool_format.h"

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "server/gateway/openai/json_slice.h"
#include "server/gateway/openai/tool_call_object.h"

namespace runahead {
namespace {

// The keys of a call. What is not found stays empty.
absl::Status ReadKeys(JsonSlice object, ToolFormat& format) {
  return object.ForMembers([&format](const std::string& key, JsonSlice value) {
    if (key == "type") format.typed = true;
    if (IsCallName(key, /*generic=*/true)) format.name_key = key;
    if (IsCallArguments(key, /*generic=*/true)) format.arguments_key = key;
    if (key != "function" || value.kind() != JsonSlice::Kind::kObject || format.nested) return absl::OkStatus();
    format.nested = true;
    return ReadKeys(value, format);
  });
}

ToolFormat JsonFormat() {
  return {.separator = ";,", .bare = true, .generic = true};
}

std::optional<ToolFormat> JsonFormatLike(absl::string_view example) {
  const size_t begin = example.find('{'), end = example.rfind('}');
  if (begin == absl::string_view::npos || end == absl::string_view::npos || end < begin) return std::nullopt;
  const absl::StatusOr<JsonSlice> object = JsonSlice::Check(example.substr(begin, end + 1 - begin));
  if (!object.ok()) return std::nullopt;
  ToolFormat format = JsonFormat();
  format.before = std::string(example.substr(0, begin));
  format.behind = std::string(example.substr(end + 1));
  format.name_key.clear();
  format.arguments_key.clear();
  if (!ReadKeys(*object, format).ok() || format.name_key.empty() || format.arguments_key.empty()) return std::nullopt;
  absl::string_view open = absl::StripAsciiWhitespace(format.before);
  absl::string_view close = absl::StripAsciiWhitespace(format.behind);
  if (absl::ConsumeSuffix(&open, "[")) absl::ConsumePrefix(&close, "]");
  format.open = std::string(absl::StripAsciiWhitespace(open));
  format.close = std::string(absl::StripAsciiWhitespace(close));
  return format;
}

}  // namespace

std::optional<ToolFormat> ToolFormatOf(absl::string_view name) {
  if (name == "hermes") {
    return ToolFormat{.open = "<tool_call>",
                      .close = "</tool_call>",
                      .anywhere = true,
                      .before = "<tool_call>\n",
                      .behind = "\n</tool_call>"};
  }
  if (name == "llama3") {
    return ToolFormat{.open = "<|python_tag|>", .separator = ";", .bare = true, .arguments_key = "parameters"};
  }
  if (name == "json") return JsonFormat();
  return absl::ConsumePrefix(&name, "json ") ? JsonFormatLike(name) : std::nullopt;
}

}  // namespace runahead
