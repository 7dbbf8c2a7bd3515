// The chat of a request: messages, tools, and what its template is told.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/json_object.h"

namespace runahead {

// messages, chat_template_kwargs, add_generation_prompt and continue_final_message. Members of messages that nobody
// knows are added to `ignored`, each key once: "messages[].KEY". INVALID_ARGUMENT names the member, also for content
// that is no text.
absl::Status ReadChatMembers(JsonObject& body, v1::ChatMessages& chat, std::vector<std::string>& ignored);

// What tools and tool_choice say.
struct ToolUse {
  bool may_call = false;
  bool must_call = false;                // one of the tools
  std::optional<std::string> name = {};  // with must_call: of the one to call; none: any
  int first = 0;                         // which of `tools` is the first of this name; of all, where there is none
};

// Adds tools to the chat where the model may call them. INVALID_ARGUMENT names the member.
absl::StatusOr<ToolUse> ReadTools(JsonObject& body, v1::ChatMessages& chat);

}  // namespace runahead
