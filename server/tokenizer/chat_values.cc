#include "server/tokenizer/chat_values.h"

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/marked_text.h"
#include "worker/format/json_value.h"

namespace runahead {
namespace {

absl::StatusOr<jinja::Value> FromJson(const JsonValue& json) {
  if (json.boolean() != nullptr) return *json.boolean();
  if (json.integer() != nullptr) return *json.integer();
  if (json.is_large_integer()) return absl::InvalidArgumentError("an integer is beyond 64 bits");
  if (json.number()) return *json.number();
  if (json.text() != nullptr) return TextValue(*json.text(), /*own=*/false);
  if (json.array() != nullptr) {
    std::vector<jinja::Value> items;
    for (const JsonValue& item : *json.array()) {
      RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value value, FromJson(item));
      items.push_back(std::move(value));
    }
    return std::make_shared<const jinja::List>(std::move(items));
  }
  if (json.object() == nullptr) return jinja::None();
  jinja::Dict dict;
  for (const auto& [key, member] : *json.object()) {
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value value, FromJson(member));
    dict.Set(FromUtf8(key, /*own=*/false), std::move(value));
  }
  return std::make_shared<const jinja::Dict>(std::move(dict));
}

// The same as JsonValues; what is wrong is said of `where`.
absl::StatusOr<jinja::Value> JsonAt(const std::string& where, std::string_view json) {
  absl::StatusOr<jinja::Value> value = JsonValues(json);
  if (value.ok()) return value;
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", value.status().message()));
}

absl::StatusOr<jinja::Value> MessageValue(const ChatMessage& message, const std::string& place) {
  if (message.role.empty()) return absl::InvalidArgumentError(place + ".role: it is empty");
  jinja::Dict dict;
  dict.Set(U"role", TextValue(message.role, IsKnownRole(message.role)));
  dict.Set(U"content", TextValue(message.content, /*own=*/false));
  if (message.name) dict.Set(U"name", TextValue(*message.name, /*own=*/false));
  if (message.tool_call_id) dict.Set(U"tool_call_id", TextValue(*message.tool_call_id, /*own=*/false));
  if (message.reasoning_content) dict.Set(U"reasoning_content", TextValue(*message.reasoning_content, /*own=*/false));
  if (message.tool_calls) {
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value calls, JsonAt(place + ".tool_calls", *message.tool_calls));
    dict.Set(U"tool_calls", std::move(calls));
  }
  return std::make_shared<const jinja::Dict>(std::move(dict));
}

absl::StatusOr<jinja::Value> MessageValues(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) return absl::InvalidArgumentError("messages: a chat needs at least one message");
  std::vector<jinja::Value> values;
  for (size_t i = 0; i < messages.size(); ++i) {
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value value, MessageValue(messages[i], absl::StrCat("messages[", i, "]")));
    values.push_back(std::move(value));
  }
  return std::make_shared<const jinja::List>(std::move(values));
}

}  // namespace

absl::StatusOr<ChatVariables> VariablesOf(const Chat& chat) {
  ChatVariables variables;
  RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value messages, MessageValues(chat.messages));
  jinja::Value tools = jinja::None();
  if (!chat.tools.empty()) {
    RUNAHEAD_ASSIGN_OR_RETURN(tools, JsonAt("tools", chat.tools));
  }
  if (!chat.variables.empty()) {
    RUNAHEAD_ASSIGN_OR_RETURN(const jinja::Value given, JsonAt("template_variables", chat.variables));
    const jinja::Dict* dict = jinja::As<jinja::Dict>(given);
    if (dict == nullptr) return absl::InvalidArgumentError("template_variables: it is no JSON object");
    for (const auto& [key, value] : dict->items) variables.emplace_back(ToUtf8(*key), value);
  }
  variables.emplace_back("messages", std::move(messages));
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("documents", jinja::None());
  variables.emplace_back("add_generation_prompt", chat.generation_prompt);
  return variables;
}

jinja::Value TextValue(std::string_view text, bool own) {
  return std::make_shared<const MarkedText>(FromUtf8(text, own));
}

absl::StatusOr<jinja::Value> JsonValues(std::string_view json) {
  constexpr JsonLimits kLimits = {.depth = 50, .values = size_t{1} << 20};
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonValue parsed, ParseJson({json.data(), json.size()}, "it", kLimits));
  return FromJson(parsed);
}

}  // namespace runahead
