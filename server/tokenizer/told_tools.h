// Tools for models whose chat template knows none.
#pragma once

#include "absl/status/statusor.h"
#include "server/tokenizer/chat.h"
#include "server/tokenizer/keep_going.h"

namespace runahead {

// Whether the chat has tools, or messages that call some.
bool HasToolsOrCalls(const Chat& chat);

// The chat for a template that writes neither tools nor calls of them. What the tools are, and how one is called, is
// told in words in the system message, which is made where there is none; of a template that has no system messages
// (`has_system`) in the first message of a user. Calls stand behind the content of the message that makes them, in the
// form that Hermes models write, and a model that is told of tools is asked for: <tool_call>{"name": ..,
// "arguments": {..}}</tool_call>. Results of one turn are one message of a user, which goes on with the words of a user
// behind them. The chat that is returned has neither
// tools nor calls, and may have other indices. INVALID_ARGUMENT as ValuesOf (chat_values.h), and for a call without a
// name.
absl::StatusOr<Chat> WithToolsTold(const Chat& chat, bool has_system, KeepGoing keep_going);

}  // namespace runahead
