#include "server/tokenizer/chat_template.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/tokenizer/chat_values.h"
#include "server/tokenizer/python.h"
#include "server/tokenizer/template_tokens.h"
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

absl::StatusOr<jinja::Template> ParsedUtf8(std::string_view source) {
  for (size_t at = 0; at < source.size();) {
    const Utf8Step step = NextUtf8(source.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) {
      return absl::InvalidArgumentError(absl::StrCat("it is not UTF-8 at byte ", at));
    }
    at += step.bytes;
  }
  absl::StatusOr<jinja::Template> parsed = jinja::Template::Parse(source);
  return parsed.ok() ? std::move(parsed) : OneLine(parsed.status());
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::FromModel(const ModelFile& file, const Tokenizer& tokenizer) {
  ChatTemplate result;
  for (const auto& [key, parsed, name] : {std::tuple(kKey, &result.template_, "the chat template"),
                                          std::tuple(kToolsKey, &result.with_tools_, "the chat template for tools")}) {
    if (!file.Has(key)) continue;
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string source, file.GetString(key));
    absl::StatusOr<jinja::Template> one = ParsedUtf8(source);
    if (!one.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(file.path(), ": ", name, " is not understood: ", one.status().message(), kInstead));
    }
    *parsed = *std::move(one);
  }
  if (!result.template_ && !result.with_tools_) {
    const std::string why = file.container() == ModelFile::Container::kFolder
                                ? std::string(file.GetString(kKey).status().message())
                                : absl::StrCat(file.path(), " has no chat template (", kKey, ")");
    return absl::FailedPreconditionError(why + kInstead);
  }
  absl::StatusOr<ChatVariables> tokens = TemplateTokens(file, tokenizer);
  if (!tokens.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(OneLine(tokens.status()).message(), kInstead));
  }
  result.tokens_ = *std::move(tokens);
  return result;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source, std::string_view bos, std::string_view eos) {
  ChatTemplate result;
  RUNAHEAD_ASSIGN_OR_RETURN(result.template_, ParsedUtf8(source));
  if (!bos.empty()) result.tokens_.emplace_back("bos_token", TextValue(bos, /*own=*/true));
  if (!eos.empty()) result.tokens_.emplace_back("eos_token", TextValue(eos, /*own=*/true));
  return result;
}

absl::StatusOr<MarkedText> ChatTemplate::Rendered(const Chat& chat, KeepGoing keep_going) const {
  ChatVariables variables = tokens_;
  RUNAHEAD_ASSIGN_OR_RETURN(ChatValues of_chat, ValuesOf(chat));
  std::move(of_chat.variables.begin(), of_chat.variables.end(), std::back_inserter(variables));
  const std::optional<jinja::Template>& chosen = with_tools_ && !chat.tools.empty() ? with_tools_ : template_;
  if (!chosen) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model's only chat template is for chats with tools, and this one has none", kInstead));
  }
  absl::StatusOr<MarkedText> text = chosen->Render(std::move(variables), chat.now, keep_going);
  if (absl::IsInvalidArgument(text.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages: they cannot be rendered: ", OneLine(text.status()).message(), kInstead));
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
