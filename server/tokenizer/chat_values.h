// What a chat template looks at: a chat, and the JSON in it, as values of server/tokenizer/jinja.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tokenizer/chat.h"
#include "server/tokenizer/jinja/value.h"

namespace runahead {

// The name of a variable, and what it is.
using ChatVariables = std::vector<std::pair<std::string, jinja::Value>>;

struct ChatValues {
  // `documents`, which is none, then the chat's own variables, then messages, tools and add_generation_prompt.
  ChatVariables variables;
  bool continues = false;  // what is rendered ends with the last message's content, which is more than space
};

// Most templates read the content of a message as a text. Those of models that also see images may go over its parts,
// as in `{% for part in message.content %}`, or take one, `message.content[0].text`, and make nothing of a text.
struct ContentForms {
  std::vector<std::string> in_parts = {};  // roles whose content is [{"type": "text", "text": ...}]
  std::vector<std::string> unread = {};    // roles whose content is not read in either form
  // Nothing of a chat's tools, or of calls of them, is written; such chats may be refused.
  bool without_tools = false;

  bool InParts(std::string_view role) const { return Has(in_parts, role); }
  bool Reads(std::string_view role) const { return !Has(unread, role); }

 private:
  // Roles that nobody knows are as users.
  static bool Has(const std::vector<std::string>& roles, std::string_view role) {
    return std::find(roles.begin(), roles.end(), IsKnownRole(role) ? role : "user") != roles.end();
  }
};

// All text is the caller's but for roles that are well known. Arguments of calls are an object, also where they came as
// JSON as a text: asked what they are, taken apart or made JSON, they are the object that it holds; written, joined,
// compared with a text or cut, they are the text as it came. Those that came as an object are written as any is, and as
// JSON only where a text is added to them by +. INVALID_ARGUMENT names the place, and shows nothing of what callers
// wrote: there is no message, one has no role, JSON is none, arguments are no object, a variable is set that is not
// free, or the last message cannot be continued.
absl::StatusOr<ChatValues> ValuesOf(const Chat& chat, const ContentForms& forms = {});

// What one text is, of the template's own or of the caller.
jinja::Value TextValue(std::string_view text, bool own);

// What the JSON says; all text in it is the caller's. INVALID_ARGUMENT where it is none, is nested deeper than 50, has
// more than a million values, an object has a name twice, or a number is beyond 64 bits.
absl::StatusOr<jinja::Value> JsonValues(std::string_view json);

}  // namespace runahead
