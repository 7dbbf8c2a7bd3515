#include "server/base/printable.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace runahead {
namespace {

// The bytes of the character that `text` begins with, 1 where they are no UTF-8; `code` is 0 then.
size_t NextCharacter(absl::string_view text, uint32_t& code) {
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

// Beyond ASCII: control characters, line ends, and marks that change the direction of what follows.
bool Steers(uint32_t code) {
  return code < 0xa0 || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

// `quotes`: double quotes and backslashes are escaped, too.
std::string Escaped(absl::string_view text, int most, bool quotes) {
  std::string out;
  for (int shown = 0; !text.empty(); ++shown) {
    if (shown == most) return out + "...";
    uint32_t code = 0;
    const size_t bytes = NextCharacter(text, code);
    const absl::string_view character = text.substr(0, bytes);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool plain = character == "'" || (!quotes && first >= 0x20 && first != 0x7f);
    if (first < 0x80) {
      out += plain ? std::string(character) : absl::CHexEscape(character);
    } else if (Steers(code)) {
      for (const char c : character) absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      out.append(character.data(), character.size());
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace

std::string Printable(absl::string_view text, int most) {
  return Escaped(text, most, /*quotes=*/true);
}

absl::Status OneLine(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), Escaped(status.message(), kOneLineCharacters, /*quotes=*/false));
}

std::string FirstCharacters(absl::string_view text, int most) {
  absl::string_view rest = text;
  uint32_t code = 0;
  for (int taken = 0; taken < most && !rest.empty(); ++taken) rest.remove_prefix(NextCharacter(rest, code));
  return absl::StrCat(text.substr(0, text.size() - rest.size()), rest.empty() ? "" : "...");
}

}  // namespace runahead
