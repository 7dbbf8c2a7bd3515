#include "server/tokenizer/chat_values.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/marked_text.h"
#include "server/tokenizer/python.h"
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

// What is wrong is said of `where`, and shows nothing of the text.
absl::StatusOr<JsonValue> ParseAt(const std::string& where, std::string_view json) {
  constexpr JsonLimits kLimits = {.depth = 50, .values = size_t{1} << 20, .names = false};
  return ParseJson({json.data(), json.size()}, where, kLimits);
}

absl::StatusOr<jinja::Value> ValueAt(const std::string& place, const JsonValue& json) {
  absl::StatusOr<jinja::Value> value = FromJson(json);
  if (value.ok()) return value;
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", value.status().message()));
}

absl::StatusOr<jinja::Value> JsonAt(const std::string& place, std::string_view json) {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonValue parsed, ParseAt(place + ": it", json));
  return ValueAt(place, parsed);
}

// Null where `json` is no object, or has no such member.
JsonValue* MemberOf(JsonValue* json, absl::string_view name) {
  if (json == nullptr || json->mutable_object() == nullptr) return nullptr;
  for (auto& [own, value] : *json->mutable_object()) {
    if (own == name) return &value;
  }
  return nullptr;
}

// Arguments that are JSON as a text, as OpenAI's API gives them, become the object that they hold. `call`: what has
// them, or null; it stands at `place`.
absl::Status OpenArguments(JsonValue* call, const std::string& place) {
  JsonValue* const arguments = MemberOf(call, "arguments");
  if (arguments == nullptr || arguments->text() == nullptr) return absl::OkStatus();
  const std::string where = place + ".arguments";
  RUNAHEAD_ASSIGN_OR_RETURN(JsonValue parsed, ParseAt(where + ": the text", *arguments->text()));
  if (parsed.object() == nullptr) {
    return absl::InvalidArgumentError(where + ": the text is JSON, but no object; arguments are one, as in {\"a\": 1}");
  }
  *arguments = std::move(parsed);
  return absl::OkStatus();
}

absl::StatusOr<jinja::Value> ToolCalls(const std::string& json, const std::string& place) {
  RUNAHEAD_ASSIGN_OR_RETURN(JsonValue calls, ParseAt(place + ": it", json));
  if (JsonValue::Array* const array = calls.mutable_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      JsonValue* const call = &(*array)[i];
      const std::string at = absl::StrCat(place, "[", i, "]");
      RUNAHEAD_RETURN_IF_ERROR(OpenArguments(call, at));
      RUNAHEAD_RETURN_IF_ERROR(OpenArguments(MemberOf(call, "function"), at + ".function"));
    }
  }
  return ValueAt(place, calls);
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
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value calls, ToolCalls(*message.tool_calls, place + ".tool_calls"));
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

constexpr std::string_view kPrompted = "add_generation_prompt", kContinued = "continue_final_message";

// What sets a variable that callers may not set, in words for the refusal; "" where they may set it.
std::string_view SetBy(std::string_view name) {
  constexpr std::array<std::string_view, 4> kTokens = {"bos_token", "eos_token", "unk_token", "pad_token"};
  if (std::find(kTokens.begin(), kTokens.end(), name) != kTokens.end()) return "the model's own token";
  return name == "messages" || name == "tools" ? "the chat's field of that name" : "";
}

// What `name` is set to by its field, or among the variables. Not by both.
absl::Status SetTurn(std::string_view name, const jinja::Value& value, std::optional<bool>& field) {
  const std::string place = absl::StrCat("template_variables.", absl::string_view(name.data(), name.size()));
  if (field) return absl::InvalidArgumentError(place + ": the chat's field of that name is set, too; set one of them");
  const bool* const truth = jinja::As<bool>(value);
  if (truth == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": it is ", jinja::TypeName(value), "; true and false are allowed"));
  }
  field = *truth;
  return absl::OkStatus();
}

// The chat's own variables, without those that are fields of it: `prompted` and `continued`.
absl::StatusOr<ChatVariables> OwnVariables(const std::string& json, std::optional<bool>& prompted,
                                           std::optional<bool>& continued) {
  ChatVariables variables;
  if (json.empty()) return variables;
  RUNAHEAD_ASSIGN_OR_RETURN(const jinja::Value given, JsonAt("template_variables", json));
  const jinja::Dict* dict = jinja::As<jinja::Dict>(given);
  if (dict == nullptr) return absl::InvalidArgumentError("template_variables: it is no JSON object");
  for (const auto& [key, value] : dict->items) {
    const std::string name = ToUtf8(*key);
    if (name == kPrompted || name == kContinued) {
      RUNAHEAD_RETURN_IF_ERROR(SetTurn(name, value, name == kPrompted ? prompted : continued));
    } else if (const std::string_view other = SetBy(name); !other.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("template_variables.", name, ": it cannot be set here; it is ",
                                                     absl::string_view(other.data(), other.size())));
    } else {
      variables.emplace_back(name, value);
    }
  }
  return variables;
}

// Whether the last message, which is there, can be continued.
absl::Status CheckContinued(const Chat& chat, std::optional<bool> prompted) {
  if (prompted.value_or(false)) {
    return absl::InvalidArgumentError(
        "continue_final_message: add_generation_prompt is true, too; the prompt ends with the last message or with the "
        "begin of a new one");
  }
  const std::string& content = chat.messages.back().content;
  if (!Strip(FromUtf8(content, /*own=*/false), nullptr, /*left=*/true, /*right=*/false).empty())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("messages[", chat.messages.size() - 1,
                   "].content: it is empty; continue_final_message needs a text that the answer goes on with"));
}

}  // namespace

absl::StatusOr<ChatValues> ValuesOf(const Chat& chat) {
  RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value messages, MessageValues(chat.messages));
  jinja::Value tools = jinja::None();
  if (!chat.tools.empty()) {
    RUNAHEAD_ASSIGN_OR_RETURN(tools, JsonAt("tools", chat.tools));
  }
  std::optional<bool> prompted = chat.add_generation_prompt, continued = chat.continue_final_message;
  ChatVariables variables = {{"documents", jinja::None()}};
  RUNAHEAD_ASSIGN_OR_RETURN(ChatVariables own, OwnVariables(chat.variables, prompted, continued));
  std::move(own.begin(), own.end(), std::back_inserter(variables));
  const bool continues = continued.value_or(false);
  if (continues) RUNAHEAD_RETURN_IF_ERROR(CheckContinued(chat, prompted));
  variables.emplace_back("messages", std::move(messages));
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back(kPrompted, prompted.value_or(!continues));
  return ChatValues{std::move(variables), continues};
}

jinja::Value TextValue(std::string_view text, bool own) {
  return std::make_shared<const MarkedText>(FromUtf8(text, own));
}

absl::StatusOr<jinja::Value> JsonValues(std::string_view json) {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonValue parsed, ParseAt("it", json));
  return FromJson(parsed);
}

}  // namespace runahead
