// Cuts the text of a chat template into raw text, outputs and statements.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace runahead {

// A word of a statement or output.
struct TemplateWord {
  enum class Kind { kName, kString, kSymbol };
  Kind kind;
  std::string
      text;  // of a string: its value. A member access is part of the name: messages[0]['role'] is messages.0.role
};

// One node of a template, in the order of the text.
struct TemplateNode {
  enum class Kind { kText, kOutput, kStatement };
  Kind kind;
  std::string text;                 // of kText: what is written; of the others: their source, for messages
  std::vector<TemplateWord> words;  // of the others
};

// White space is handled as chat templates expect it: `-` trims, the first line end after a statement and the blanks
// before one that begins a line are dropped, and so is the last line end. INVALID_ARGUMENT shows what cannot be read.
absl::StatusOr<std::vector<TemplateNode>> LexTemplate(std::string_view source);

}  // namespace runahead
