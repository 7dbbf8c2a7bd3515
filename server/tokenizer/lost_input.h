// What a caller says may be left out by a chat template, and nobody would notice but by a strange answer.
#pragma once

#include <cstddef>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/chat.h"
#include "server/tokenizer/chat_values.h"
#include "server/tokenizer/keep_going.h"
#include "server/tokenizer/marked_text.h"

namespace runahead {

// The index of a message whose content is more than space, and of which nothing stands in `text`, which is what the
// template made of the chat; nothing where there is none. Looked at are the newest of users and tools; and the newest
// of a role that instructs (system, developer), if the template reads none of that role (`forms`). What it leaves out
// of earlier turns is its business, and so is when it repeats instructions: some do before a user's words only, and not
// behind a tool's. Where a content is not found as it is, or the template reads none of that role, the chat is rendered
// twice with another in its place: what is the same then holds nothing of it, in whatever form. `render` is what made
// `text`; what it fails with but INVALID_ARGUMENT is the answer. `each_system`: of all of the chat's system messages
// something stands there; those whose contents stand there in their order take time linear in the text, and of the
// others the first sixteen are looked for. `keep_going` is asked before each message that is looked for.
absl::StatusOr<std::optional<size_t>> LostMessage(const Chat& chat, const ContentForms& forms, bool each_system,
                                                  const MarkedText& text, KeepGoing keep_going,
                                                  absl::FunctionRef<absl::StatusOr<MarkedText>(const Chat&)> render);

}  // namespace runahead
