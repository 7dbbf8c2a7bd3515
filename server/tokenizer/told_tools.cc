#include "server/tokenizer/told_tools.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/chat_values.h"
#include "server/tokenizer/jinja/template.h"
#include "server/tokenizer/marked_text.h"

namespace runahead {
namespace {

constexpr std::string_view kToolWords =
    R"({% if tools %}You can call functions. Each line between these tags is one of them, as JSON:
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
To call a function, write one JSON object with its name and its arguments, between these tags:
<tool_call>
{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}
</tool_call>
To call several, write one such block after the other. The results come between <tool_response> and </tool_response>.
Where no function helps, answer in words.{% endif %})";

constexpr std::string_view kCallWords =
    R"({% set m = messages[0] %}{{ m.content }}{% for call in m.tool_calls %}{% set f = call.function or call %})"
    R"({% if m.content or not loop.first %}{{ '\n' }}{% endif %}{{ '<tool_call>\n{"name": ' }}{{ f.name | tojson }})"
    R"({{ ', "arguments": ' }}{{ (f.arguments or {}) | tojson }}{{ '}\n</tool_call>' }}{% endfor %})";

// What the words, a template of ours, make of the chat.
absl::StatusOr<std::string> Written(std::string_view words, const Chat& chat, KeepGoing keep_going) {
  RUNAHEAD_ASSIGN_OR_RETURN(const jinja::Template parsed, jinja::Template::Parse(words));
  RUNAHEAD_ASSIGN_OR_RETURN(ChatValues values, ValuesOf(chat));
  RUNAHEAD_ASSIGN_OR_RETURN(const MarkedText text, parsed.Render(std::move(values.variables), chat.now, keep_going));
  return ToUtf8(text);
}

// With its calls, if it has any, as a part of its content.
absl::StatusOr<ChatMessage> WithCallsWritten(const ChatMessage& message, size_t index, KeepGoing keep_going) {
  if (!message.tool_calls) return message;
  ChatMessage written = message;
  absl::StatusOr<std::string> content = Written(kCallWords, {.messages = {message}}, keep_going);
  if (absl::IsInvalidArgument(content.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages[", index, "].tool_calls: a call has no name, or is none: ", content.status().message()));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(written.content, std::move(content));
  written.tool_calls.reset();
  return written;
}

void AddResult(const std::string& content, bool behind_another, std::vector<ChatMessage>& messages) {
  const std::string result = absl::StrCat("<tool_response>\n", content, "\n</tool_response>");
  if (behind_another) {
    absl::StrAppend(&messages.back().content, "\n", result);
  } else {
    messages.push_back({"user", result});
  }
}

void AddInstruction(const std::string& words, bool has_system, std::vector<ChatMessage>& messages) {
  if (has_system && messages[0].role == "system") {
    messages[0].content = messages[0].content.empty() ? words : absl::StrCat(messages[0].content, "\n\n", words);
    return;
  }
  const auto first = std::find_if(messages.begin(), messages.end(), [](const auto& one) { return one.role == "user"; });
  if (has_system || first == messages.end()) {
    messages.insert(messages.begin(), {has_system ? "system" : "user", words});
  } else {
    first->content = absl::StrCat(words, "\n\n", first->content);
  }
}

}  // namespace

bool HasToolsOrCalls(const Chat& chat) {
  return !chat.tools.empty() || std::any_of(chat.messages.begin(), chat.messages.end(),
                                            [](const ChatMessage& one) { return one.tool_calls.has_value(); });
}

absl::StatusOr<Chat> WithToolsTold(const Chat& chat, bool has_system, KeepGoing keep_going) {
  RUNAHEAD_RETURN_IF_ERROR(ValuesOf(chat).status());  // what is wrong is told of the chat as it came
  Chat told = chat;
  told.messages.clear();
  told.tools.clear();
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    const bool behind_result = i > 0 && chat.messages[i - 1].role == "tool";
    if (message.role == "tool") {
      AddResult(message.content, behind_result, told.messages);
    } else if (message.role == "user" && behind_result) {
      // Many templates refuse two messages of users in a row.
      absl::StrAppend(&told.messages.back().content, "\n\n", message.content);
    } else {
      RUNAHEAD_ASSIGN_OR_RETURN(ChatMessage written, WithCallsWritten(message, i, keep_going));
      told.messages.push_back(std::move(written));
    }
  }
  if (chat.tools.empty()) return told;
  // Not of an empty array.
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string words,
                            Written(kToolWords, {.messages = {{"user", ""}}, .tools = chat.tools}, keep_going));
  if (!words.empty()) AddInstruction(words, has_system, told.messages);
  return told;
}

}  // namespace runahead
