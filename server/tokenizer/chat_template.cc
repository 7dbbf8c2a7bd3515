#include "server/tokenizer/chat_template.h"

#include <algorithm>
#include <array>
#include <memory>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

constexpr const char* kKey = "tokenizer.chat_template";
constexpr const char* kToolsKey = "tokenizer.chat_template.tool_use";
constexpr const char* kInstead = "; send the prompt as text, or as token ids";
constexpr std::array<std::string_view, 5> kKnownRoles = {"system", "developer", "user", "assistant", "tool"};

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

jinja::Value TextValue(std::string_view text, bool own) {
  return std::make_shared<const jinja::Text>(jinja::FromUtf8(text, own));
}

absl::Status InJson(const std::string& where, const absl::Status& status) {
  return absl::InvalidArgumentError(jinja::Cat(where, ": ", status.message()));
}

absl::StatusOr<jinja::Value> MessageValue(const ChatMessage& message, size_t index) {
  jinja::Dict dict;
  const auto set = [&dict](std::string_view key, jinja::Value value) {
    dict.Set(jinja::FromUtf8(key, /*own=*/false), std::move(value));
  };
  set("role", TextValue(message.role, IsKnownRole(message.role)));
  set("content", TextValue(message.content, /*own=*/false));
  if (message.name) set("name", TextValue(*message.name, /*own=*/false));
  if (message.tool_call_id) set("tool_call_id", TextValue(*message.tool_call_id, /*own=*/false));
  if (message.reasoning_content) set("reasoning_content", TextValue(*message.reasoning_content, /*own=*/false));
  if (message.tool_calls) {
    absl::StatusOr<jinja::Value> calls = jinja::ParseJson(*message.tool_calls);
    if (!calls.ok()) return InJson(jinja::Cat("messages[", index, "].tool_calls"), calls.status());
    set("tool_calls", *std::move(calls));
  }
  return std::make_shared<const jinja::Dict>(std::move(dict));
}

absl::StatusOr<jinja::Value> MessageValues(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) return absl::InvalidArgumentError("messages: a chat needs at least one message");
  jinja::List list;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role.empty()) {
      return absl::InvalidArgumentError(jinja::Cat("messages[", i, "].role: it is empty"));
    }
    RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value message, MessageValue(messages[i], i));
    list.Add(std::move(message));
  }
  return std::make_shared<const jinja::List>(std::move(list));
}

template <typename T>
absl::Status CheckJson(std::string_view json, std::string_view what) {
  RUNAHEAD_ASSIGN_OR_RETURN(const jinja::Value value, jinja::ParseJson(json));
  if (jinja::As<T>(value) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(jinja::Cat("it is ", jinja::TypeName(value), ", not a JSON ", what));
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::FromModel(const ModelFile& file, const Tokenizer& tokenizer) {
  if (!file.Has(kKey)) {
    return absl::FailedPreconditionError(jinja::Cat(file.path(), " has no chat template (", kKey, ")", kInstead));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string source, file.GetString(kKey));
  const auto name = [&tokenizer](std::optional<int32_t> id) {
    return id ? tokenizer.TokenBytes(*id) : std::string_view();
  };
  absl::StatusOr<ChatTemplate> parsed = Parse(source, name(tokenizer.bos_id()), name(tokenizer.eos_id()));
  if (!parsed.ok()) {
    return absl::FailedPreconditionError(
        jinja::Cat(file.path(), ": the chat template is not understood: ", parsed.status().message(), kInstead));
  }
  if (file.Has(kToolsKey)) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string for_tools, file.GetString(kToolsKey));
    absl::StatusOr<ChatTemplate> with_tools = Parse(for_tools, {}, {});
    if (!with_tools.ok()) {
      return absl::FailedPreconditionError(jinja::Cat(
          file.path(), ": the chat template for tools is not understood: ", with_tools.status().message(), kInstead));
    }
    parsed->with_tools_ = std::move(with_tools->template_);
  }
  for (const auto& [variable, key] : {std::pair("unk_token", "tokenizer.ggml.unknown_token_id"),
                                      std::pair("pad_token", "tokenizer.ggml.padding_token_id")}) {
    const absl::StatusOr<uint64_t> id = file.GetUint(key);
    if (!id.ok() || *id >= static_cast<uint64_t>(tokenizer.vocab_size())) continue;
    parsed->tokens_.emplace_back(variable, tokenizer.TokenBytes(static_cast<int32_t>(*id)));
  }
  return parsed;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source, std::string_view bos, std::string_view eos) {
  for (size_t at = 0; at < source.size();) {
    const Utf8Step step = NextUtf8(source.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) {
      return absl::InvalidArgumentError(jinja::Cat("it is not UTF-8 at byte ", at));
    }
    at += step.bytes;
  }
  RUNAHEAD_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source));
  ChatTemplate result(std::move(parsed));
  if (!bos.empty()) result.tokens_.emplace_back("bos_token", bos);
  if (!eos.empty()) result.tokens_.emplace_back("eos_token", eos);
  return result;
}

absl::StatusOr<jinja::Text> ChatTemplate::Rendered(const Chat& chat, KeepGoing keep_going) const {
  Variables variables;
  for (const auto& [name, token] : tokens_) variables.emplace_back(name, TextValue(token, /*own=*/true));
  RUNAHEAD_ASSIGN_OR_RETURN(jinja::Value messages, MessageValues(chat.messages));
  jinja::Value tools = jinja::None();
  if (!chat.tools.empty()) {
    absl::StatusOr<jinja::Value> parsed = jinja::ParseJson(chat.tools);
    if (!parsed.ok()) return InJson("tools", parsed.status());
    tools = *std::move(parsed);
  }
  if (!chat.variables.empty()) {
    absl::StatusOr<jinja::Value> parsed = jinja::ParseJson(chat.variables);
    if (!parsed.ok()) return InJson("template_variables", parsed.status());
    const jinja::Dict* dict = jinja::As<jinja::Dict>(*parsed);
    if (dict == nullptr) return absl::InvalidArgumentError("template_variables: it is no JSON object");
    for (const auto& [key, value] : dict->items) variables.emplace_back(jinja::ToUtf8(*key), value);
  }
  variables.emplace_back("messages", std::move(messages));
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("documents", jinja::None());
  variables.emplace_back("add_generation_prompt", chat.generation_prompt);
  const bool by_tools = !chat.tools.empty() && with_tools_.has_value();
  absl::StatusOr<jinja::Text> text =
      (by_tools ? *with_tools_ : template_).Render(std::move(variables), chat.now, keep_going);
  if (!absl::IsInvalidArgument(text.status())) return text;
  return absl::InvalidArgumentError(
      jinja::Cat("messages: they cannot be rendered: ", text.status().message(), kInstead));
}

absl::StatusOr<std::string> ChatTemplate::Render(const Chat& chat, KeepGoing keep_going) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const jinja::Text text, Rendered(chat, keep_going));
  return jinja::ToUtf8(text);
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::Encode(const Tokenizer& tokenizer, const Chat& chat,
                                                          KeepGoing keep_going) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const jinja::Text text, Rendered(chat, keep_going));
  return tokenizer.EncodeParts(jinja::Parts(text), keep_going);
}

absl::Status CheckJsonArray(std::string_view json) {
  return CheckJson<jinja::List>(json, "array");
}

absl::Status CheckJsonObject(std::string_view json) {
  return CheckJson<jinja::Dict>(json, "object");
}

bool IsKnownRole(std::string_view role) {
  return std::find(kKnownRoles.begin(), kKnownRoles.end(), role) != kKnownRoles.end();
}

}  // namespace runahead
