// Chats to text as the model's own template has it, for the ChatML family.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/model_file.h"

namespace runahead {

struct ChatMessage {
  std::string role;
  std::string content;
};

// A template that was recognised: texts before, for each and after the messages, some of them on a condition. All of it
// comes from the template's source, the default system message included; nothing is known about any model here. There
// is no Jinja engine: a template that asks for more than this is refused when it is read. Immutable and thread-safe.
class ChatTemplate {
 public:
  // The template in the file. FAILED_PRECONDITION says that there is none or what in it is not understood; prompts as
  // text work all the same.
  static absl::StatusOr<ChatTemplate> FromGguf(const ModelFile& file, const Tokenizer& tokenizer);

  // `bos` and `eos`: the names that the template's bos_token and eos_token stand for.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source, std::string_view bos, std::string_view eos);

  // The chat as text; with `generation_prompt` it ends where the assistant's answer begins. INVALID_ARGUMENT when there
  // is no message or one has no role.
  absl::StatusOr<std::string> Render(absl::Span<const ChatMessage> messages, bool generation_prompt = true) const;

  // The chat as tokens. Control tokens come from the template alone: their names in roles and contents are text, so
  // that no user can end a turn or write a system message.
  absl::StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer, absl::Span<const ChatMessage> messages,
                                              bool generation_prompt = true, KeepGoing keep_going = Always) const;

 private:
  friend class ChatTemplateParser;

  enum class When { kAlways, kFirstRoleDiffers, kGenerationPrompt };
  enum class What { kText, kRole, kContent };
  struct Piece {
    When when;
    bool first_only;  // within the messages: at the first one only
    What what;
    std::string text;  // of kText
  };

  ChatTemplate() = default;
  absl::StatusOr<std::vector<TextPart>> Parts(absl::Span<const ChatMessage> messages, bool generation_prompt) const;

  std::vector<Piece> before_;
  std::vector<Piece> each_;  // once a message
  std::vector<Piece> after_;
  std::string first_role_;  // what When::kFirstRoleDiffers compares the first message's role with
};

}  // namespace runahead
