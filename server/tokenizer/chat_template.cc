#include "server/tokenizer/chat_template.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/chat_values.h"
#include "server/tokenizer/python.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

constexpr const char* kKey = "tokenizer.chat_template";
constexpr const char* kToolsKey = "tokenizer.chat_template.tool_use";
constexpr const char* kInstead = "; send the prompt as text, or as token ids";
constexpr std::array<std::string_view, 5> kKnownRoles = {"system", "developer", "user", "assistant", "tool"};

template <typename T>
absl::Status CheckJson(std::string_view json, const char* what) {
  RUNAHEAD_ASSIGN_OR_RETURN(const jinja::Value value, JsonValues(json));
  if (jinja::As<T>(value) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("it is ", jinja::TypeName(value), ", not a JSON ", what));
}

// Where the last place of `content` in the rendered text ends, as transformers finds it: space at its ends is not
// looked for, and stays where all of it is there. But what the template wrote itself is `content` only where nothing
// else is.
std::optional<size_t> EndOf(const MarkedText& content, const MarkedText& rendered) {
  const MarkedText stripped = Strip(content, nullptr, /*left=*/true, /*right=*/true);
  std::optional<size_t> place = LastPlace(stripped, rendered, /*own=*/false);
  if (!place) place = LastPlace(stripped, rendered, /*own=*/true);
  if (!place) return std::nullopt;
  return *place + (rendered.compare(*place, content.size(), content) == 0 ? content.size() : stripped.size());
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::FromModel(const ModelFile& file, const Tokenizer& tokenizer) {
  if (!file.Has(kKey)) {
    return absl::FailedPreconditionError(absl::StrCat(file.path(), " has no chat template (", kKey, ")", kInstead));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string source, file.GetString(kKey));
  const auto name = [&tokenizer](std::optional<int32_t> id) {
    return id ? tokenizer.TokenBytes(*id) : std::string_view();
  };
  absl::StatusOr<ChatTemplate> parsed = Parse(source, name(tokenizer.bos_id()), name(tokenizer.eos_id()));
  if (!parsed.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.path(), ": the chat template is not understood: ", parsed.status().message(), kInstead));
  }
  if (file.Has(kToolsKey)) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string for_tools, file.GetString(kToolsKey));
    absl::StatusOr<ChatTemplate> with_tools = Parse(for_tools, {}, {});
    if (!with_tools.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
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
      return absl::InvalidArgumentError(absl::StrCat("it is not UTF-8 at byte ", at));
    }
    at += step.bytes;
  }
  RUNAHEAD_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source));
  ChatTemplate result(std::move(parsed));
  if (!bos.empty()) result.tokens_.emplace_back("bos_token", bos);
  if (!eos.empty()) result.tokens_.emplace_back("eos_token", eos);
  return result;
}

absl::StatusOr<MarkedText> ChatTemplate::Rendered(const Chat& chat, KeepGoing keep_going) const {
  ChatVariables variables;
  for (const auto& [name, token] : tokens_) variables.emplace_back(name, TextValue(token, /*own=*/true));
  RUNAHEAD_ASSIGN_OR_RETURN(ChatValues of_chat, ValuesOf(chat));
  std::move(of_chat.variables.begin(), of_chat.variables.end(), std::back_inserter(variables));
  const bool by_tools = !chat.tools.empty() && with_tools_.has_value();
  absl::StatusOr<MarkedText> text =
      (by_tools ? *with_tools_ : template_).Render(std::move(variables), chat.now, keep_going);
  if (absl::IsInvalidArgument(text.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages: they cannot be rendered: ", text.status().message(), kInstead));
  }
  if (!text.ok() || !of_chat.continues) return text;
  const std::optional<size_t> end = EndOf(FromUtf8(chat.messages.back().content, /*own=*/false), *text);
  if (end) return text->substr(0, *end);
  return absl::InvalidArgumentError(absl::StrCat(
      "continue_final_message: the chat template leaves the last message's content out, or changes it", kInstead));
}

absl::StatusOr<std::string> ChatTemplate::Render(const Chat& chat, KeepGoing keep_going) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const MarkedText text, Rendered(chat, keep_going));
  return ToUtf8(text);
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::Encode(const Tokenizer& tokenizer, const Chat& chat,
                                                          KeepGoing keep_going) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const MarkedText text, Rendered(chat, keep_going));
  return tokenizer.EncodeParts(Parts(text), keep_going);
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
