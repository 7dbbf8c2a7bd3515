// What a chat template looks at: a chat, and the JSON in it, as values of server/tokenizer/jinja.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tokenizer/chat_template.h"
#include "server/tokenizer/jinja/value.h"

namespace runahead {

// The name of a variable, and what it is.
using ChatVariables = std::vector<std::pair<std::string, jinja::Value>>;

// The chat's own variables, then messages, tools, documents and add_generation_prompt, which replace those of the same
// name. All text is the caller's but for roles that are well known. INVALID_ARGUMENT names the place: there is no
// message, one has no role, or JSON is none.
absl::StatusOr<ChatVariables> VariablesOf(const Chat& chat);

// What one text is, of the template's own or of the caller.
jinja::Value TextValue(std::string_view text, bool own);

// What the JSON says; all text in it is the caller's. INVALID_ARGUMENT where it is none, is nested deeper than 50, has
// more than a million values, an object has a name twice, or a number is beyond 64 bits.
absl::StatusOr<jinja::Value> JsonValues(std::string_view json);

}  // namespace runahead
