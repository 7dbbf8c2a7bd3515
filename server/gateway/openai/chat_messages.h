// The chat of a request: messages, and what its template is told.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/json_object.h"

namespace runahead {

// messages, chat_template_kwargs, add_generation_prompt and continue_final_message. Members of messages that nobody
// knows are added to `ignored`, each key once: "messages[].KEY". INVALID_ARGUMENT names the member, also for content
// that is no text.
absl::Status ReadChatMembers(JsonObject& body, v1::ChatMessages& chat, std::vector<std::string>& ignored);

}  // namespace runahead
