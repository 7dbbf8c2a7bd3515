// Chats to text as the model's own template has it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/tokenizer/jinja/template.h"
#include "server/tokenizer/marked_text.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/model_file.h"

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

// A Jinja template (server/tokenizer/jinja/template.h says what of Jinja is evaluated), read once. Nothing is known
// about any model here: all that is written comes from the template. Immutable and thread-safe.
class ChatTemplate {
 public:
  // The template in the file, and the one that it has for chats with tools; one of them is enough. FAILED_PRECONDITION
  // says that there is none, or what in it, and where, is not understood; prompts as text or token ids work all the
  // same.
  static absl::StatusOr<ChatTemplate> FromModel(const ModelFile& file, const Tokenizer& tokenizer);

  // `bos` and `eos`: what the template's bos_token and eos_token stand for; empty: they are undefined. INVALID_ARGUMENT
  // names the line and what stands there, fit for a line of a log.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source, std::string_view bos, std::string_view eos);

  // The chat as text. INVALID_ARGUMENT when there is no message, one has no role, JSON is none, a variable is not free,
  // the last message is to be continued and cannot be, or the template cannot render it: what the template itself
  // complains about, or where it failed. It shows nothing of the messages. FAILED_PRECONDITION: the chat has no tools,
  // and the model's only template is for those that do.
  absl::StatusOr<std::string> Render(const Chat& chat, KeepGoing keep_going = Always) const;

  // The chat as tokens. Control tokens come from the template alone: their names in what the caller gave are text, so
  // that no user can end a turn or write a system message. Of that, only roles that are well known (system, developer,
  // user, assistant, tool) count as the template's: many templates make a control token of a role.
  absl::StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer, const Chat& chat,
                                              KeepGoing keep_going = Always) const;

 private:
  ChatTemplate() = default;
  absl::StatusOr<MarkedText> Rendered(const Chat& chat, KeepGoing keep_going) const;

  std::optional<jinja::Template> template_, with_tools_;      // the second in the first's place for chats with tools
  std::vector<std::pair<std::string, jinja::Value>> tokens_;  // TemplateTokens
};

// What can be said of JSON in a request before it is used. INVALID_ARGUMENT: it is no JSON array, or object, or is
// nested too deep.
absl::Status CheckJsonArray(std::string_view json);
absl::Status CheckJsonObject(std::string_view json);

// Whether templates may take it for their own word.
bool IsKnownRole(std::string_view role);

}  // namespace runahead
