#include "server/tokenizer/template_probes.h"

#include <iterator>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

constexpr const char* kFiller = "x";
constexpr const char* kCallId = "abcdefghi";  // some templates want ids of nine characters

std::string ToolsOf(const std::string& name) {
  return absl::StrCat(R"([{"type": "function", "function": {"name": ")", name,
                      R"(", "description": "x", "parameters": {"type": "object", "properties": {}}}}])");
}

// A question, and a call of a tool for it.
Chat Calling(const std::string& name) {
  ChatMessage call{"assistant", ""};
  call.tool_calls = absl::StrCat(R"([{"id": ")", kCallId, R"(", "type": "function", "function": {"name": ")", name,
                                 R"(", "arguments": {}}}])");
  Chat chat{.messages = {{"user", kFiller}, call}, .tools = ToolsOf(name)};
  chat.messages.push_back({"tool", kFiller, name, kCallId});
  return chat;
}

Chat Answered(const std::string& text) {
  return {.messages = {{"user", kFiller}, {"assistant", text}, {"user", kFiller}}};
}

template <const char* kRole>
Chat Instructed(const std::string& text) {
  return {.messages = {{kRole, text}, {"user", kFiller}}};
}

Chat Asked(const std::string& text) {
  return {.messages = {{"user", text}}};
}

Chat WithResult(const std::string& text) {
  Chat chat = Calling("f");
  chat.messages.back().content = text;
  return chat;
}

Chat Named(const std::string& text) {
  Chat chat = Asked(kFiller);
  chat.messages[0].name = text;
  return chat;
}

Chat ReasonedBefore(const std::string& text) {
  Chat chat = Answered(kFiller);
  chat.messages[1].reasoning_content = text;
  return chat;
}

Chat Reasoned(const std::string& text) {
  Chat chat = Calling("f");
  chat.messages[1].reasoning_content = text;
  return chat;
}

Chat WithTools(const std::string& text) {
  Chat chat = Asked(kFiller);
  chat.tools = ToolsOf(text);
  return chat;
}

Chat InstructedWithTools(const std::string& text) {
  Chat chat = WithTools(text);
  chat.messages.insert(chat.messages.begin(), {"system", kFiller});
  return chat;
}

Chat WithDocuments(const std::string& text) {
  Chat chat = Asked(kFiller);
  chat.variables = absl::StrCat(R"({"documents": [{"title": ")", text, R"(", "text": ")", text, R"("}]})");
  return chat;
}

constexpr char kSystem[] = "system", kDeveloper[] = "developer";
constexpr ChatProbe kProbes[] = {{"system messages", Instructed<kSystem>},
                                 {"developer messages", Instructed<kDeveloper>},
                                 {"questions", Asked},
                                 {"answers", Answered},
                                 {"reasoning of earlier turns", ReasonedBefore},
                                 {"reasoning of the turn that goes on", Reasoned},
                                 {"tools", WithTools},
                                 {"calls of tools", Calling},
                                 {"results of tools", WithResult},
                                 {"names of messages", Named},
                                 {"documents", WithDocuments}};

// A chat that has the text as a message of the role.
Chat WithContent(std::string_view role, const std::string& text) {
  if (role == "system") return Instructed<kSystem>(text);
  if (role == "developer") return Instructed<kDeveloper>(text);
  if (role == "assistant") return Answered(text);
  return role == "tool" ? WithResult(text) : Asked(text);
}

// Nothing where the template cannot render it.
std::optional<MarkedText> Rendered(const jinja::Template& chat_template, const ChatVariables& tokens, const Chat& chat,
                                   const ContentForms& forms) {
  absl::StatusOr<ChatValues> of_chat = ValuesOf(chat, forms);
  if (!of_chat.ok()) return std::nullopt;
  ChatVariables variables = tokens;
  std::move(of_chat->variables.begin(), of_chat->variables.end(), std::back_inserter(variables));
  absl::StatusOr<MarkedText> text = chat_template.Render(std::move(variables), chat.now, Always, kProbeLimits);
  return text.ok() ? std::optional<MarkedText>(*std::move(text)) : std::nullopt;
}

}  // namespace

absl::Span<const ChatProbe> ChatProbes() {
  return kProbes;
}

ContentForms FormsOf(const jinja::Template& chat_template, const ChatVariables& tokens) {
  ContentForms forms;
  const auto differ = [&](absl::FunctionRef<Chat(const char*)> chat, const ContentForms& given) {
    const auto rendered = [&](const char* text) { return Rendered(chat_template, tokens, chat(text), given); };
    const std::optional<MarkedText> one = rendered(kProbeTexts[0]), other = rendered(kProbeTexts[1]);
    return one && other && *one != *other;
  };
  const auto reads = [&](std::string_view role, const ContentForms& given) {
    return differ([&](const char* text) { return WithContent(role, text); }, given);
  };
  // Users' first: the others' chats have messages of theirs.
  for (const std::string_view role : {"user", "system", "developer", "assistant", "tool"}) {
    if (reads(role, forms)) continue;
    ContentForms parts = forms;
    parts.in_parts.emplace_back(role);
    if (reads(role, parts)) {
      forms = std::move(parts);
    } else {
      forms.unread.emplace_back(role);
    }
  }
  // Of a template that takes too much for a probe nothing is known.
  forms.without_tools = Rendered(chat_template, tokens, Asked(kFiller), forms).has_value() &&
                        !differ(WithTools, forms) && !differ(InstructedWithTools, forms) && !differ(Calling, forms);
  return forms;
}

}  // namespace runahead
