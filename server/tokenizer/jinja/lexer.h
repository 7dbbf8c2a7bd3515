// Cuts the source of a template into tokens, with white space as trim_blocks and lstrip_blocks have it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace runahead::jinja {

struct Token {
  enum class Kind {
    kData,
    kOutputBegin,
    kOutputEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kSymbol,
    kEnd
  };
  Kind kind;
  std::string text;  // of kData and kString: their value
  size_t place;      // in the source
};

// The last token is kEnd. `source` has line ends of one form (NormalizeLineEnds). INVALID_ARGUMENT names line and
// place.
absl::StatusOr<std::vector<Token>> Lex(std::string_view source);

// \n for every end of a line, and none at the very end.
std::string NormalizeLineEnds(std::string_view source);

// INVALID_ARGUMENT: "line 3, at `...`: what is wrong".
absl::Status SyntaxError(std::string_view source, size_t place, std::string_view what);

}  // namespace runahead::jinja
