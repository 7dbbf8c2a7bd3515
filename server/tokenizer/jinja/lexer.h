// The source of a template as tokens.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/tokenizer/jinja/value.h"

namespace runahead::jinja {

struct Token {
  enum class Kind { kData, kName, kString, kNumber, kSymbol, kEnd };
  Kind kind;
  std::string text;  // of kData and kString: their value; {{, }}, {% and %} are symbols
  size_t place;      // in the source
};

// The last token is kEnd. White space is as trim_blocks and lstrip_blocks have it. `source` has \n for every end of a
// line. Throws Failure.
std::vector<Token> Lex(std::string_view source);

// What is wrong in the source, and where: "line 3, at `{{ x.y }`: ...".
Failure FailureAt(std::string_view source, size_t place, std::string_view what);

}  // namespace runahead::jinja
