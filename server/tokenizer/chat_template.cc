#include "server/tokenizer/chat_template.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/tokenizer/call_form.h"
#include "server/tokenizer/lost_input.h"
#include "server/tokenizer/python.h"
#include "server/tokenizer/template_probes.h"
#include "server/tokenizer/template_tokens.h"
#include "server/tokenizer/told_tools.h"
#include "server/tokenizer/tool_properties.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

constexpr const char* kKey = "tokenizer.chat_template";
constexpr const char* kToolsKey = "tokenizer.chat_template.tool_use";
constexpr const char* kInstead = "; send the prompt as text, or as token ids";

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

// Callers are told what a file lacks, but not where it lies: "chat_template.json: ..." of
// "/models/a/chat_template.json: ...".
std::string WithoutPath(absl::string_view message, absl::string_view path) {
  if (!absl::ConsumePrefix(&message, path)) return std::string(message);
  return absl::ConsumePrefix(&message, "/") ? std::string(message) : absl::StrCat("the model", message);
}

Chat WithoutTools(Chat chat) {
  chat.tools.clear();
  return chat;
}

constexpr const char* kToolsVariable = "tools";

// What ValuesOf made of the chat's tools.
const jinja::Value& ToolsIn(const ChatVariables& variables) {
  const auto tools =
      std::find_if(variables.rbegin(), variables.rend(), [](const auto& one) { return one.first == kToolsVariable; });
  return tools->second;  // it is always there, if only as none
}

}  // namespace

absl::StatusOr<ChatTemplate::Template> ChatTemplate::Parsed(std::string_view source) {
  for (size_t at = 0; at < source.size();) {
    const Utf8Step step = NextUtf8(source.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) {
      return absl::InvalidArgumentError(absl::StrCat("it is not UTF-8 at byte ", at));
    }
    at += step.bytes;
  }
  absl::StatusOr<jinja::Template> parsed = jinja::Template::Parse(source);
  if (!parsed.ok()) return OneLine(parsed.status());
  return Template{*std::move(parsed)};
}

void ChatTemplate::SetTokens(ChatVariables tokens) {
  tokens_ = std::move(tokens);
  for (std::optional<Template>* one : {&template_, &with_tools_}) {
    if (*one) (*one)->forms = FormsOf((*one)->text, tokens_);
  }
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromModel(const ModelFile& file, const Tokenizer& tokenizer) {
  ChatTemplate result;
  for (const auto& [key, parsed, name] : {std::tuple(kKey, &result.template_, "the chat template"),
                                          std::tuple(kToolsKey, &result.with_tools_, "the chat template for tools")}) {
    if (!file.Has(key)) continue;
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string source, file.GetString(key));
    absl::StatusOr<Template> one = Parsed(source);
    if (!one.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(name, " is not understood: ", one.status().message(), kInstead));
    }
    *parsed = *std::move(one);
  }
  if (!result.template_ && !result.with_tools_) {
    const std::string why = file.container() == ModelFile::Container::kFolder
                                ? WithoutPath(file.GetString(kKey).status().message(), file.path())
                                : absl::StrCat("the model has no chat template (", kKey, ")");
    return absl::FailedPreconditionError(why + kInstead);
  }
  absl::StatusOr<ChatVariables> tokens = TemplateTokens(file, tokenizer);
  if (!tokens.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(WithoutPath(OneLine(tokens.status()).message(), file.path()), kInstead));
  }
  result.SetTokens(*std::move(tokens));
  return result;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source, std::string_view bos, std::string_view eos) {
  ChatTemplate result;
  RUNAHEAD_ASSIGN_OR_RETURN(result.template_, Parsed(source));
  ChatVariables tokens;
  if (!bos.empty()) tokens.emplace_back("bos_token", TextValue(bos, /*own=*/true));
  if (!eos.empty()) tokens.emplace_back("eos_token", TextValue(eos, /*own=*/true));
  result.SetTokens(std::move(tokens));
  return result;
}

const std::optional<ChatTemplate::Template>& ChatTemplate::ChosenFor(const Chat& chat) const {
  return with_tools_ && !chat.tools.empty() ? with_tools_ : template_;
}

absl::StatusOr<MarkedText> ChatTemplate::Rendered(const Chat& chat, KeepGoing keep_going,
                                                  const jinja::Limits& limits) const {
  const std::optional<Template>& chosen = ChosenFor(chat);
  if (!chosen) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model's only chat template is for chats with tools, and this one has none", kInstead));
  }
  ChatVariables variables = tokens_;
  RUNAHEAD_ASSIGN_OR_RETURN(ChatValues of_chat, ValuesOf(chat, chosen->forms));
  RUNAHEAD_RETURN_IF_ERROR(keep_going());
  std::move(of_chat.variables.begin(), of_chat.variables.end(), std::back_inserter(variables));
  RUNAHEAD_ASSIGN_OR_RETURN(MarkedText text, RenderedOf(chat, std::move(variables), keep_going, limits));
  if (!of_chat.continues) return text;
  const std::optional<size_t> end = EndOf(FromUtf8(chat.messages.back().content, /*own=*/false), text);
  if (end) return text.substr(0, *end);
  return absl::InvalidArgumentError(absl::StrCat(
      "continue_final_message: the chat template leaves the last message's content out, or changes it", kInstead));
}

absl::StatusOr<MarkedText> ChatTemplate::RenderedOf(const Chat& chat, ChatVariables variables, KeepGoing keep_going,
                                                    const jinja::Limits& limits) const {
  const auto render = [&] { return ChosenFor(chat)->text.Render(variables, chat.now, keep_going, limits); };
  const absl::StatusOr<MarkedText> text = render();
  if (!absl::IsInvalidArgument(text.status())) return text;
  RUNAHEAD_RETURN_IF_ERROR(keep_going());
  // Some go through the properties of each tool, also of one that has none.
  if (std::optional<jinja::Value> tools = ToolsWithProperties(ToolsIn(variables))) {
    variables.emplace_back(kToolsVariable, *std::move(tools));
    const absl::StatusOr<MarkedText> again = render();
    if (!absl::IsInvalidArgument(again.status())) return again;
    RUNAHEAD_RETURN_IF_ERROR(keep_going());
  }
  bool of_tools = false;
  if (!chat.tools.empty()) {
    const absl::Status without = Rendered(WithoutTools(chat), keep_going, limits).status();
    // Where the only template is for chats with tools, it cannot be said.
    of_tools = without.ok();
    if (!of_tools && !absl::IsInvalidArgument(without) && !absl::IsFailedPrecondition(without)) return without;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      of_tools ? "tools" : "messages", ": they cannot be rendered: ", OneLine(text.status()).message(), kInstead));
}

std::optional<Chat> ChatTemplate::WithDevelopersAsSystem(const Chat& chat) const {
  const std::optional<Template>& chosen = ChosenFor(chat);
  if (!chosen || chosen->forms.Reads("developer") || !chosen->forms.Reads("system")) return std::nullopt;
  const auto is_developers = [](const ChatMessage& message) { return message.role == "developer"; };
  if (std::none_of(chat.messages.begin(), chat.messages.end(), is_developers)) return std::nullopt;
  Chat changed = chat;
  for (ChatMessage& message : changed.messages) {
    if (is_developers(message)) message.role = "system";
  }
  return changed;
}

bool ChatTemplate::TellsTools() const {
  const std::optional<Template>& chosen = ChosenFor({.messages = {}, .tools = "[]"});
  return chosen && chosen->forms.without_tools;
}

std::string ChatTemplate::ToolFormat(const Tokenizer& tokenizer, std::string_view words) const {
  if (TellsTools()) return "hermes";
  const auto rendered = [this](const Chat& chat) { return Rendered(chat, Always, kProbeLimits); };
  const absl::StatusOr<MarkedText> calling = rendered(CallingChat()), saying = rendered(SayingChat());
  if (calling.ok() && saying.ok()) {
    if (const std::optional<std::string> form = CallFormOf(*calling, *saying, tokenizer)) return *form;
  }
  if (!words.empty()) return std::string(words);
  const absl::StatusOr<MarkedText> untold = rendered(WithoutTools(SayingChat()));
  return saying.ok() && untold.ok() && *saying != *untold ? "json" : "";
}

absl::StatusOr<ChatTemplate::Prepared> ChatTemplate::Prepare(const Chat& given, KeepGoing keep_going) const {
  Prepared prepared{.changed = WithDevelopersAsSystem(given)};
  prepared.developers = prepared.changed.has_value();
  const Chat& chat = prepared.changed ? *prepared.changed : given;
  const std::optional<Template>& chosen = ChosenFor(chat);
  if (!chosen || !chosen->forms.without_tools || !HasToolsOrCalls(chat)) return prepared;
  RUNAHEAD_ASSIGN_OR_RETURN(prepared.changed, WithToolsTold(chat, chosen->forms.Reads("system"), keep_going));
  prepared.tools = true;
  return prepared;
}

absl::StatusOr<std::string> ChatTemplate::Render(const Chat& chat, KeepGoing keep_going) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const MarkedText text, Rendered(chat, keep_going));
  return ToUtf8(text);
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::Encode(const Tokenizer& tokenizer, const Chat& given,
                                                          KeepGoing keep_going) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const Prepared prepared, Prepare(given, keep_going));
  const Chat& chat = prepared.changed ? *prepared.changed : given;
  const auto render = [&](const Chat& one) { return Rendered(one, keep_going); };
  RUNAHEAD_ASSIGN_OR_RETURN(const MarkedText text, render(chat));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<size_t> lost,
                            LostMessage(chat, ChosenFor(chat)->forms, prepared.developers, text, keep_going, render));
  if (lost) {
    const ChatMessage& said = chat.messages[*lost];
    return absl::InvalidArgumentError(absl::StrCat(
        prepared.tools ? absl::StrCat("messages: the model's chat template leaves one of the role ", said.role, " out")
                       : absl::StrCat("messages[", *lost, "].content: the model's chat template leaves it out"),
        ", so that the model would see nothing of it", kInstead));
  }
  return tokenizer.EncodeParts(Parts(text), keep_going);
}

std::vector<std::string> ChatTemplate::LeftOut() const {
  std::vector<std::string> left_out;
  for (const ChatProbe& probe : ChatProbes()) {
    const auto rendered = [&](const char* text) -> absl::StatusOr<MarkedText> {
      const Chat chat = probe.chat(text);
      RUNAHEAD_ASSIGN_OR_RETURN(const Prepared prepared, Prepare(chat, Always));
      return Rendered(prepared.changed.value_or(chat), Always, kProbeLimits);
    };
    const absl::StatusOr<MarkedText> one = rendered(kProbeTexts[0]), other = rendered(kProbeTexts[1]);
    if (one.ok() && other.ok() && *one == *other) left_out.emplace_back(probe.what);
  }
  return left_out;
}

absl::Status CheckJsonArray(std::string_view json) {
  return CheckJson<jinja::List>(json, "array");
}

absl::Status CheckJsonObject(std::string_view json) {
  return CheckJson<jinja::Dict>(json, "object");
}

}  // namespace runahead
