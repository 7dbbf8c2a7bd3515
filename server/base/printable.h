// Other people's text, fit for an error message.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace runahead {

inline constexpr int kPrintableCharacters = 64;

// The first `most` characters of `text`, with "..." where there are more. Letters of any language stay; double quotes,
// backslashes, whatever steers a terminal or turns the direction of writing, and bytes that are no UTF-8 are escaped as
// in C ("\n", "\x1b").
std::string Printable(absl::string_view text, int most = kPrintableCharacters);

inline constexpr int kOneLineCharacters = 2000;

// At most so many characters of `text`, "..." behind them. What Printable escapes is escaped, but for double quotes and
// backslashes, which may be our own. For messages about files that quote them in many places.
std::string OneLine(absl::string_view text);
// `status` with such a message. Payloads are left out.
absl::Status OneLine(const absl::Status& status);

// The first `most` characters of `text` as they are, with "..." where there are more.
std::string FirstCharacters(absl::string_view text, int most);

}  // namespace runahead
