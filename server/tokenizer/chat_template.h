// Chats to text as the model's own template has it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/chat.h"
#include "server/tokenizer/chat_values.h"
#include "server/tokenizer/jinja/template.h"
#include "server/tokenizer/marked_text.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/model_file.h"

namespace runahead {

// A Jinja template (server/tokenizer/jinja/template.h says what of Jinja is evaluated), read once. Nothing is known
// about any model here: all that is written comes from the template. Immutable and thread-safe.
class ChatTemplate {
 public:
  // The template in the file, and the one that it has for chats with tools; one of them is enough. FAILED_PRECONDITION
  // says that there is none, or what in it, and where, is not understood; prompts as text or token ids work all the
  // same. Callers of other machines are told this status, so it does not say where the file lies.
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
  // user, assistant, tool) count as the template's: many templates make a control token of a role. A
  // template that never writes developer messages, and writes system ones, gets those as these: clients of newer models
  // say developer where others say system, and mean the same. A template that knows no tools gets them told in words
  // (told_tools.h). As Render, and INVALID_ARGUMENT names what LostMessage (lost_input.h) finds.
  absl::StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer, const Chat& chat,
                                              KeepGoing keep_going = Always) const;

  // Whether tools are told in words, and calls are asked for in the form of told_tools.h: the template knows no tools.
  bool TellsTools() const;

  // How the model writes calls of tools, as v1::Model::tool_format has it: as the template writes one (call_form.h), or
  // as they are told in words. `words`: what the words in the template's source say, for a template that writes none
  // of a chat's calls; where they say nothing, and it writes tools, "json". `tokenizer`: of the model.
  std::string ToolFormat(const Tokenizer& tokenizer, std::string_view words) const;

  // What of chats the templates neither write nor refuse, in words for people: found out by rendering some
  // (template_probes.h).
  std::vector<std::string> LeftOut() const;

 private:
  struct Template {
    jinja::Template text;
    ContentForms forms = {};
  };

  ChatTemplate() = default;
  static absl::StatusOr<Template> Parsed(std::string_view source);
  void SetTokens(ChatVariables tokens);
  const std::optional<Template>& ChosenFor(const Chat& chat) const;
  // A chat as the template can write it.
  struct Prepared {
    std::optional<Chat> changed = {};  // nothing: it stays as it is
    bool developers = false;           // developer messages are system ones
    bool tools = false;                // tools and calls are told in words
  };
  absl::StatusOr<Prepared> Prepare(const Chat& chat, KeepGoing keep_going) const;
  std::optional<Chat> WithDevelopersAsSystem(const Chat& chat) const;
  absl::StatusOr<MarkedText> Rendered(const Chat& chat, KeepGoing keep_going, const jinja::Limits& limits = {}) const;
  // Where it fails, also with the tools' properties filled in, the fault is the tools' if it does not without them:
  // three renderings at most.
  absl::StatusOr<MarkedText> RenderedOf(const Chat& chat, ChatVariables variables, KeepGoing keep_going,
                                        const jinja::Limits& limits) const;

  std::optional<Template> template_, with_tools_;  // the second in the first's place for chats with tools
  ChatVariables tokens_;                           // TemplateTokens
};

// What can be said of JSON in a request before it is used. INVALID_ARGUMENT: it is no JSON array, or object, or is
// nested too deep.
absl::Status CheckJsonArray(std::string_view json);
absl::Status CheckJsonObject(std::string_view json);

}  // namespace runahead
