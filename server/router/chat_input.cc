#include "server/router/chat_input.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

Chat ChatOf(const v1::ChatMessages& given, absl::Time now) {
  const auto if_there = [](bool there, const std::string& text) {
    return there ? std::optional<std::string>(text) : std::nullopt;
  };
  Chat chat;
  for (const v1::ChatMessage& message : given.messages()) {
    ChatMessage& added = chat.messages.emplace_back();
    added.role = message.role();
    added.content = message.content();
    added.name = if_there(message.has_name(), message.name());
    added.tool_call_id = if_there(message.has_tool_call_id(), message.tool_call_id());
    added.tool_calls = if_there(message.has_tool_calls(), message.tool_calls());
    added.reasoning_content = if_there(message.has_reasoning_content(), message.reasoning_content());
  }
  chat.tools = given.tools();
  chat.variables = given.template_variables();
  if (given.has_add_generation_prompt()) chat.add_generation_prompt = given.add_generation_prompt();
  if (given.has_continue_final_message()) chat.continue_final_message = given.continue_final_message();
  chat.now = now;
  return chat;
}

// "messages: why" as the field chat.messages.
absl::Status InChat(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  const std::pair<std::string, std::string> parts = absl::StrSplit(status.message(), absl::MaxSplits(": ", 1));
  return InvalidField(absl::StrCat("chat.", parts.first), parts.second);
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> EncodeChat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                const v1::ChatMessages& given, absl::Time now, KeepGoing keep_going) {
  absl::StatusOr<std::vector<int32_t>> ids = chat_template.Encode(tokenizer, ChatOf(given, now), keep_going);
  return ids.ok() ? std::move(ids) : InChat(ids.status());
}

}  // namespace runahead
