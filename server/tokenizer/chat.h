// A chat as a chat template is given one.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace runahead {

// What is absent is absent for the template, too: it may ask whether it is there.
struct ChatMessage {
  std::string role;
  std::string content;
  std::optional<std::string> name = std::nullopt;
  std::optional<std::string> tool_call_id = std::nullopt;
  std::optional<std::string> reasoning_content = std::nullopt;
  std::optional<std::string> tool_calls = std::nullopt;  // a JSON array; `arguments`: ValuesOf (chat_values.h)
};

// All that a template may look at.
struct Chat {
  std::vector<ChatMessage> messages;
  std::string tools = {};  // a JSON array; empty: none
  // A JSON object of further variables, which come before the template's own names; or empty. The next two may stand in
  // it, too, but not twice; what the chat and the model set may not.
  std::string variables = {};
  std::optional<bool> add_generation_prompt = {};   // ends where an answer begins; absent: unless the next one is true
  std::optional<bool> continue_final_message = {};  // ends with the last message's content; absent: false
  absl::Time now = absl::UnixEpoch();               // what the template takes for the time
};

// Templates may take these for their own word.
inline constexpr std::array<std::string_view, 5> kKnownRoles = {"system", "developer", "user", "assistant", "tool"};

inline bool IsKnownRole(std::string_view role) {
  return std::find(kKnownRoles.begin(), kKnownRoles.end(), role) != kKnownRoles.end();
}

}  // namespace runahead
