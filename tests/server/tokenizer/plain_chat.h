// What several tests of chat templates begin with.
#pragma once

#include <utility>
#include <vector>

#include "server/tokenizer/chat_template.h"

namespace runahead {

inline constexpr const char* kPlainTemplate =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

inline Chat ChatOf(std::vector<ChatMessage> messages) {
  return {.messages = std::move(messages)};
}

}  // namespace runahead
