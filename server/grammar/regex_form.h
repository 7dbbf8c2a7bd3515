// Regular expressions: the part of ECMAScript's that can be promised, in a form that leaves nothing open.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace runahead {

// What the characters of a text stand for.
enum class RegexText {
  kPlain,       // themselves
  kJsonString,  // what is between the quotes of a JSON string: no character in it has to be escaped
};

struct RegexForm {
  std::string text;     // printable ASCII: characters, classes, groups, alternatives and repetitions only
  int64_t written = 0;  // characters and classes when all counts are written out
};

// Of an expression that is to match a whole text, so that anchors at its ends say nothing. A dot is no line break.
// INVALID_ARGUMENT says at which character, from 1, what is not supported or allowed.
absl::StatusOr<RegexForm> ReadRegex(std::string_view regex, RegexText text);

}  // namespace runahead
