// Chats as the golden files have them.
#pragma once

#include <string>

#include "server/tokenizer/chat_template.h"

namespace runahead {

// `json`: an object with messages, and maybe tools, variables (both JSON as text), add_generation_prompt,
// continue_final_message and now (Unix seconds). Throws where it is none.
Chat ChatFromJson(const std::string& json);

}  // namespace runahead
