// Other people's text, fit for a line of a log, a label or a terminal. As weight_type.h, of no other file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace runahead {

// The bytes of the character that `text` begins with, 1 where they are no UTF-8; `code` is 0 then.
inline size_t NextCharacter(absl::string_view text, uint32_t& code) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  code = byte(0);
  if (code < 0x80) return 1;
  const size_t bytes = code >= 0xf0 ? 4 : code >= 0xe0 ? 3 : 2;
  constexpr uint32_t kLeast[] = {0x80, 0x800, 0x10000};  // of 2, 3 and 4 bytes; below it the form is overlong
  bool good = code >= 0xc2 && code <= 0xf4 && bytes <= text.size();
  code &= 0xffu >> (bytes + 1);
  for (size_t i = 1; good && i < bytes; ++i) {
    good = (byte(i) & 0xc0) == 0x80;
    code = code << 6 | (byte(i) & 0x3f);
  }
  if (good && code >= kLeast[bytes - 2] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff)) return bytes;
  code = 0;
  return 1;
}

// Whether a character beyond ASCII is a control character, a line's end, or a mark that changes the direction of what
// follows; or, 0, is none.
inline bool Steers(uint32_t code) {
  return code < 0xa0 || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

// The first `most` characters of `text`, with "..." where there are more. Letters of any language stay; whatever steers
// a terminal or turns the direction of writing, and bytes that are no UTF-8, are escaped as in C ("\n", "\x1b").
// `quotes`: double quotes and backslashes, too.
inline std::string Escaped(absl::string_view text, size_t most, bool quotes) {
  std::string out;
  for (size_t shown = 0; !text.empty(); ++shown) {
    if (shown == most) return out + "...";
    uint32_t code = 0;
    const size_t bytes = NextCharacter(text, code);
    const absl::string_view character = text.substr(0, bytes);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool ascii_stays = character == "'" || (!quotes && first >= 0x20 && first != 0x7f);
    const bool stays = first < 0x80 ? ascii_stays : !Steers(code);
    out += stays ? std::string(character) : absl::CHexEscape(character);
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace runahead
