#include "server/tokenizer/chat_values.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/marked_text.h"
#include "server/tokenizer/python.h"
#include "server/tokenizer/template_tokens.h"
#include "worker/format/json_value.h"

namespace runahead {
namespace {

absl::StatusOr<jinja::Value> FromJson(const JsonValue& json);

absl::StatusOr<jinja::Dict> DictOf(const JsonValue::Object& object) {
  jinja::Dict dict;
  for (const auto& [key, member] : object) {
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value value, FromJson(member));
    dict.Set(FromUtf8(key, /*own=*/false), std::move(value));
  }
  return dict;
}

jinja::Value Shared(jinja::Dict dict) {
  return std::make_shared<const jinja::Dict>(std::move(dict));
}

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
  RUNAHEAD_ASSIGN_OR_RETURN(jinja::Dict dict, DictOf(*json.object()));
  return Shared(std::move(dict));
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

// The object that arguments are, or that the JSON text holds which they are, as OpenAI's API gives them.
absl::StatusOr<jinja::Value> ArgumentsValue(const JsonValue& json, const std::string& place) {
  const std::string* const text = json.text();
  JsonValue held;
  if (text != nullptr && text->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": the text is empty; a call without arguments has {}"));
  }
  if (text != nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(held, ParseAt(place + ": the text", *text));
  }
  const JsonValue::Object* const object = (text == nullptr ? json : held).object();
  if (object == nullptr) {
    const char* const what = text == nullptr ? ": it is" : ": the text is JSON, but";
    return absl::InvalidArgumentError(absl::StrCat(place, what, " no object; arguments are one, as in {\"a\": 1}"));
  }
  absl::StatusOr<jinja::Dict> dict = DictOf(*object);
  if (!dict.ok()) return absl::InvalidArgumentError(absl::StrCat(place, ": ", dict.status().message()));
  dict->arguments = true;
  if (text != nullptr) dict->came_as = std::make_shared<const MarkedText>(FromUtf8(*text, /*own=*/false));
  return Shared(*std::move(dict));
}

// A call (`whole`), or its function. What is no object stays what it is.
absl::StatusOr<jinja::Value> CallValue(const JsonValue& json, const std::string& place, bool whole) {
  if (json.object() == nullptr) return ValueAt(place, json);
  jinja::Dict dict;
  for (const auto& [key, member] : *json.object()) {
    const std::string at = absl::StrCat(place, ".", key);
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value value, key == "arguments"           ? ArgumentsValue(member, at)
                                                  : whole && key == "function" ? CallValue(member, at, /*whole=*/false)
                                                                               : ValueAt(place, member));
    dict.Set(FromUtf8(key, /*own=*/false), std::move(value));
  }
  return Shared(std::move(dict));
}

absl::StatusOr<jinja::Value> ToolCalls(const std::string& json, const std::string& place) {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonValue calls, ParseAt(place + ": it", json));
  if (calls.array() == nullptr) return ValueAt(place, calls);
  std::vector<jinja::Value> values;
  for (const JsonValue& call : *calls.array()) {
    const std::string at = absl::StrCat(place, "[", values.size(), "]");
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value value, CallValue(call, at, /*whole=*/true));
    values.push_back(std::move(value));
  }
  return std::make_shared<const jinja::List>(std::move(values));
}

jinja::Value ContentValue(const std::string& content, bool in_parts) {
  jinja::Value text = TextValue(content, /*own=*/false);
  if (!in_parts) return text;
  jinja::Dict part;
  part.Set(U"type", TextValue("text", /*own=*/false));
  part.Set(U"text", std::move(text));
  return std::make_shared<const jinja::List>(std::vector<jinja::Value>{Shared(std::move(part))});
}

absl::StatusOr<jinja::Value> MessageValue(const ChatMessage& message, const ContentForms& forms,
                                          const std::string& place) {
  if (message.role.empty()) return absl::InvalidArgumentError(place + ".role: it is empty");
  jinja::Dict dict;
  dict.Set(U"role", TextValue(message.role, IsKnownRole(message.role)));
  dict.Set(U"content", ContentValue(message.content, forms.InParts(message.role)));
  if (message.name) dict.Set(U"name", TextValue(*message.name, /*own=*/false));
  if (message.tool_call_id) dict.Set(U"tool_call_id", TextValue(*message.tool_call_id, /*own=*/false));
  if (message.reasoning_content) dict.Set(U"reasoning_content", TextValue(*message.reasoning_content, /*own=*/false));
  if (message.tool_calls) {
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value calls, ToolCalls(*message.tool_calls, place + ".tool_calls"));
    dict.Set(U"tool_calls", std::move(calls));
  }
  return std::make_shared<const jinja::Dict>(std::move(dict));
}

absl::StatusOr<jinja::Value> MessageValues(const std::vector<ChatMessage>& messages, const ContentForms& forms) {
  if (messages.empty()) return absl::InvalidArgumentError("messages: a chat needs at least one message");
  std::vector<jinja::Value> values;
  for (size_t i = 0; i < messages.size(); ++i) {
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value value, MessageValue(messages[i], forms, absl::StrCat("messages[", i, "]")));
    values.push_back(std::move(value));
  }
  return std::make_shared<const jinja::List>(std::move(values));
}

constexpr std::string_view kPrompted = "add_generation_prompt", kContinued = "continue_final_message";

// What sets a variable that callers may not set, in words for the refusal; "" where they may set it.
std::string_view SetBy(std::string_view name) {
  if (std::find(kTokenNames.begin(), kTokenNames.end(), name) != kTokenNames.end()) return "the model's own token";
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

absl::StatusOr<ChatValues> ValuesOf(const Chat& chat, const ContentForms& forms) {
  RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value messages, MessageValues(chat.messages, forms));
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
