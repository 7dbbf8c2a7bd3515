#include "server/tokenizer/chat_template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/template_lexer.h"

namespace runahead {
namespace {

constexpr const char* kKey = "tokenizer.chat_template";

// A statement as one line, to compare with those that are known. A string is shown as 'value'.
std::string Canonical(const std::vector<TemplateWord>& words) {
  std::string line;
  for (const TemplateWord& word : words) {
    if (!line.empty()) line += ' ';
    line += word.kind == TemplateWord::Kind::kString ? absl::StrCat("'", word.text, "'") : word.text;
  }
  return line;
}

}  // namespace

// Reads the nodes of a template in order. A statement that is not one of the family's ends it with an error.
class ChatTemplateParser {
 public:
  ChatTemplateParser(std::vector<TemplateNode> nodes, std::string_view bos, std::string_view eos)
      : nodes_(std::move(nodes)), bos_(bos), eos_(eos) {}

  absl::StatusOr<ChatTemplate> Run() {
    for (const TemplateNode& node : nodes_) {
      RUNAHEAD_RETURN_IF_ERROR(node.kind == TemplateNode::Kind::kStatement ? Statement(node) : Output(node));
    }
    if (place_ != Place::kAfter || in_if_) return absl::InvalidArgumentError("it has no whole loop over the messages");
    for (const ChatTemplate::Piece& piece : result_.each_) {
      if (piece.what == ChatTemplate::What::kContent) return std::move(result_);
    }
    return absl::InvalidArgumentError("it does not show the messages' contents");
  }

 private:
  enum class Place { kBefore, kEach, kAfter };

  static absl::Status Beyond(const TemplateNode& node) {
    return absl::InvalidArgumentError(absl::StrCat("it has `", node.text.substr(0, 80), "`"));
  }

  absl::Status Statement(const TemplateNode& node) {
    const std::string line = Canonical(node.words);
    if (line == "for message in messages" && place_ == Place::kBefore && !in_if_) {
      place_ = Place::kEach;
    } else if (line == "endfor" && place_ == Place::kEach && !in_if_) {
      place_ = Place::kAfter;
    } else if (line == "endif" && in_if_) {
      in_if_ = defaulting_ = first_only_ = false;
      when_ = ChatTemplate::When::kAlways;
    } else if (line == "set add_generation_prompt = false" && defaulting_) {
      // We always say whether we want it.
    } else if (!in_if_ && !node.words.empty() && node.words[0].text == "if") {
      in_if_ = true;
      return Condition(node, line);
    } else {
      return Beyond(node);
    }
    return absl::OkStatus();
  }

  absl::Status Condition(const TemplateNode& node, const std::string& line) {
    const auto role_differs = [&](size_t from) {
      const std::vector<TemplateWord>& words = node.words;
      if (words.size() != from + 3 || words[from].text != "messages.0.role" || words[from + 1].text != "!=" ||
          words[from + 2].kind != TemplateWord::Kind::kString) {
        return false;
      }
      if (!result_.first_role_.empty() && result_.first_role_ != words[from + 2].text) return false;
      result_.first_role_ = words[from + 2].text;
      return true;
    };
    if (line == "if add_generation_prompt" && place_ != Place::kEach) {
      when_ = ChatTemplate::When::kGenerationPrompt;
    } else if (line == "if not add_generation_prompt is defined" && place_ == Place::kBefore) {
      defaulting_ = true;
    } else if (line.rfind("if loop.first and ", 0) == 0 && place_ == Place::kEach && role_differs(3)) {
      when_ = ChatTemplate::When::kFirstRoleDiffers;
      first_only_ = true;
    } else if (place_ != Place::kEach && role_differs(1)) {
      when_ = ChatTemplate::When::kFirstRoleDiffers;
    } else {
      return Beyond(node);
    }
    return absl::OkStatus();
  }

  // Raw text, or strings and variables joined by +.
  absl::Status Output(const TemplateNode& node) {
    if (node.kind == TemplateNode::Kind::kText) return Add(node, {TemplateWord::Kind::kString, node.text});
    if (node.words.size() % 2 == 0) return Beyond(node);
    for (size_t i = 0; i < node.words.size(); ++i) {
      if (i % 2 == 0) {
        RUNAHEAD_RETURN_IF_ERROR(Add(node, node.words[i]));
      } else if (node.words[i].text != "+" || node.words[i].kind != TemplateWord::Kind::kSymbol) {
        return Beyond(node);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Add(const TemplateNode& node, const TemplateWord& word) {
    if (defaulting_) return Beyond(node);
    ChatTemplate::Piece piece = {when_, first_only_, ChatTemplate::What::kText, ""};
    if (word.kind == TemplateWord::Kind::kString) {
      piece.text = word.text;
    } else if (word.text == "message.role" && place_ == Place::kEach) {
      piece.what = ChatTemplate::What::kRole;
    } else if (word.text == "message.content" && place_ == Place::kEach) {
      piece.what = ChatTemplate::What::kContent;
    } else if (word.text == "bos_token") {
      piece.text = std::string(bos_);
    } else if (word.text == "eos_token") {
      piece.text = std::string(eos_);
    } else {
      return Beyond(node);
    }
    (place_ == Place::kBefore ? result_.before_
     : place_ == Place::kEach ? result_.each_
                              : result_.after_)
        .push_back(std::move(piece));
    return absl::OkStatus();
  }

  const std::vector<TemplateNode> nodes_;
  const std::string_view bos_;
  const std::string_view eos_;
  ChatTemplate result_;
  Place place_ = Place::kBefore;
  bool in_if_ = false;
  bool defaulting_ = false;  // within `if not add_generation_prompt is defined`
  ChatTemplate::When when_ = ChatTemplate::When::kAlways;
  bool first_only_ = false;
};

absl::StatusOr<ChatTemplate> ChatTemplate::FromGguf(const ModelFile& file, const Tokenizer& tokenizer) {
  if (!file.Has(kKey)) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.path(), " has no chat template (", kKey, "): send the prompt as text"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string source, file.GetString(kKey));
  const auto name = [&tokenizer](std::optional<int32_t> id) {
    return id ? tokenizer.TokenBytes(*id) : std::string_view();
  };
  absl::StatusOr<ChatTemplate> parsed = Parse(source, name(tokenizer.bos_id()), name(tokenizer.eos_id()));
  if (!parsed.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(file.path(), ": the chat template is not of the ChatML family, the only one that is rendered: ",
                     parsed.status().message(), "; send the prompt as text"));
  }
  return parsed;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source, std::string_view bos, std::string_view eos) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<TemplateNode> nodes, LexTemplate(source));
  return ChatTemplateParser(std::move(nodes), bos, eos).Run();
}

absl::StatusOr<std::vector<TextPart>> ChatTemplate::Parts(absl::Span<const ChatMessage> messages,
                                                          bool generation_prompt) const {
  if (messages.empty()) return absl::InvalidArgumentError("messages: a chat needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role.empty())
      return absl::InvalidArgumentError(absl::StrCat("messages[", i, "].role: it is empty"));
  }
  std::vector<TextPart> parts;
  const auto add = [&](const std::vector<Piece>& pieces, const ChatMessage& message, bool first) {
    for (const Piece& piece : pieces) {
      if (piece.first_only && !first) continue;
      if (piece.when == When::kGenerationPrompt && !generation_prompt) continue;
      if (piece.when == When::kFirstRoleDiffers && messages[0].role == first_role_) continue;
      const bool own = piece.what == What::kText;
      parts.push_back({own ? piece.text : piece.what == What::kRole ? message.role : message.content, own});
    }
  };
  add(before_, messages[0], true);
  for (size_t i = 0; i < messages.size(); ++i) add(each_, messages[i], i == 0);
  add(after_, messages.back(), true);
  return parts;
}

absl::StatusOr<std::string> ChatTemplate::Render(absl::Span<const ChatMessage> messages, bool generation_prompt) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<TextPart> parts, Parts(messages, generation_prompt));
  std::string text;
  for (const TextPart& part : parts) text += part.text;
  return text;
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::Encode(const Tokenizer& tokenizer,
                                                          absl::Span<const ChatMessage> messages,
                                                          bool generation_prompt, KeepGoing keep_going) const {
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<TextPart> parts, Parts(messages, generation_prompt));
  return tokenizer.EncodeParts(parts, keep_going);
}

}  // namespace runahead
