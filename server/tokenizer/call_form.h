// How a chat template writes calls of tools: its models write theirs alike. Found out, once, by rendering two chats
// that differ in what the assistant says. That says more than the template's source, where the words for a call may
// stand in names, macros and conditions.
#pragma once

#include <optional>
#include <string>

#include "server/tokenizer/chat.h"
#include "server/tokenizer/marked_text.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead {

// A chat whose last message, of the assistant, calls a tool; and the same chat where that message is a text.
Chat CallingChat();
Chat SayingChat();

// `calling` and `saying`: what a template made of these chats. The form of the call as v1::Model::tool_format has it:
// "hermes"; "llama3"; "json" with a blank and one call as the template writes it, whose tool is NAME and has no
// arguments: what stands around the JSON is there as answers show it, without control tokens. Empty: the call is
// written, but not as JSON that has both its name and its arguments, or within other JSON. Nothing: it is not written.
std::optional<std::string> CallFormOf(const MarkedText& calling, const MarkedText& saying, const Tokenizer& tokenizer);

}  // namespace runahead
