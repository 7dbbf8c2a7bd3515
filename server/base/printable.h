// Other people's text, fit for an error message.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

inline constexpr int kPrintableCharacters = 64;

// The first `most` characters of `text`, with "..." where there are more. Letters of any language stay; double quotes,
// backslashes, whatever steers a terminal or turns the direction of writing, and bytes that are no UTF-8 are escaped as
// in C ("\n", "\x1b").
std::string Printable(absl::string_view text, int most = kPrintableCharacters);

// The first `most` characters of `text` as they are, with "..." where there are more.
std::string FirstCharacters(absl::string_view text, int most);

}  // namespace runahead
