#include "tests/testing/json_chat.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace runahead {

Chat ChatFromJson(const std::string& text_of_json) {
  const nlohmann::json json = nlohmann::json::parse(text_of_json);
  Chat chat;
  for (const auto& message : json.at("messages")) {
    const auto text = [&message](const char* key) {
      return message.contains(key) ? std::optional(message[key].get<std::string>()) : std::nullopt;
    };
    ChatMessage& added = chat.messages.emplace_back();
    added.role = message.at("role");
    added.content = message.value("content", "");
    added.name = text("name");
    added.tool_call_id = text("tool_call_id");
    added.reasoning_content = text("reasoning_content");
    added.tool_calls = text("tool_calls");
  }
  chat.tools = json.value("tools", "");
  chat.variables = json.value("variables", "");
  for (const auto& [key, field] : {std::pair("add_generation_prompt", &chat.add_generation_prompt),
                                   std::pair("continue_final_message", &chat.continue_final_message)}) {
    if (json.contains(key)) *field = json[key].get<bool>();
  }
  chat.now = absl::FromUnixSeconds(json.value("now", 0));
  return chat;
}

}  // namespace runahead
