#include "server/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

bool IsAscii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

int CombiningClass(int32_t character) {
  return utf8proc_get_property(character)->combining_class;
}

// Into the order that Unicode calls canonical. (utf8proc's own sorting is quadratic in the marks of a row.)
void SortMarks(std::vector<int32_t>& characters) {
  const auto is_mark = [](int32_t character) { return CombiningClass(character) != 0; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), is_mark);
    const auto end = std::find_if_not(begin, characters.end(), is_mark);
    std::stable_sort(begin, end, [](int32_t a, int32_t b) { return CombiningClass(a) < CombiningClass(b); });
    begin = end;
  }
}

// `text` begins with at most one ASCII character, on which what follows may act.
absl::Status AppendNormalizedRun(std::string_view text, NormalForm form, Steps& steps, std::string& out) {
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<int32_t> characters;
  constexpr int kMostOfOne = 32;  // U+FDFA becomes 18
  while (!text.empty()) {
    RUNAHEAD_RETURN_IF_ERROR(steps.Next());
    int32_t decomposed[kMostOfOne];
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<int32_t>(FirstCharacter(text)), decomposed,
                                                           kMostOfOne, options, /*last_boundclass=*/nullptr);
    if (count < 0 || count > kMostOfOne) return absl::InternalError("a character cannot be decomposed");
    characters.insert(characters.end(), decomposed, decomposed + count);
    text.remove_prefix(NextUtf8(text).bytes);
  }
  SortMarks(characters);
  size_t count = characters.size();
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) {
    count = static_cast<size_t>(
        utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(count),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE)));
  }
  for (size_t i = 0; i < count; ++i) AppendCharacter(static_cast<uint32_t>(characters[i]), out);
  return absl::OkStatus();
}

}  // namespace

uint32_t FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const auto tail = [&](size_t i) { return byte(i) & 0x3f; };
  if (byte(0) < 0x80) return byte(0);
  if (byte(0) < 0xe0) return (byte(0) & 0x1f) << 6 | tail(1);
  if (byte(0) < 0xf0) return (byte(0) & 0x0f) << 12 | tail(1) << 6 | tail(2);
  return (byte(0) & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
}

void AppendCharacter(uint32_t character, std::string& text) {
  const auto add = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (character < 0x80) return add(character);
  if (character < 0x800) {
    add(0xc0 | character >> 6);
  } else {
    if (character < 0x10000) {
      add(0xe0 | character >> 12);
    } else {
      add(0xf0 | character >> 18);
      add(0x80 | (character >> 12 & 0x3f));
    }
    add(0x80 | (character >> 6 & 0x3f));
  }
  add(0x80 | (character & 0x3f));
}

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool IsWordCharacter(uint32_t character) {
  if (character == 0x200c || character == 0x200d) return true;  // joiners
  switch (utf8proc_category(static_cast<int32_t>(character))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

size_t WhiteSpaceBegin(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const std::string_view rest = text.substr(bytes);
    const Utf8Step step = NextUtf8(rest);
    if (step.kind != Utf8Step::Kind::kCharacter || !IsWhiteSpace(FirstCharacter(rest))) break;
    bytes += step.bytes;
  }
  return bytes;
}

size_t WhiteSpaceEnd(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const std::string_view rest = text.substr(0, text.size() - bytes);
    size_t last = 1;  // white space is of one to three bytes
    while (last < 3 && last < rest.size() && (static_cast<unsigned char>(rest[rest.size() - last]) & 0xc0) == 0x80)
      ++last;
    const std::string_view character = rest.substr(rest.size() - last);
    const Utf8Step step = NextUtf8(character);
    if (step.kind != Utf8Step::Kind::kCharacter || step.bytes != last || !IsWhiteSpace(FirstCharacter(character)))
      break;
    bytes += last;
  }
  return bytes;
}

absl::Status AppendNormalized(std::string_view text, NormalForm form, Steps& steps, std::string& out) {
  // ASCII stays as it is, and nothing behind an ASCII character acts on what is before it.
  while (!text.empty()) {
    const size_t ascii = static_cast<size_t>(std::find_if_not(text.begin(), text.end(), IsAscii) - text.begin());
    const size_t plain = ascii == text.size() || ascii == 0 ? ascii : ascii - 1;
    out += text.substr(0, plain);
    text.remove_prefix(plain);
    const auto begin = text.begin() + (text.empty() || !IsAscii(text[0]) ? 0 : 1);
    const size_t run = static_cast<size_t>(std::find_if(begin, text.end(), IsAscii) - text.begin());
    RUNAHEAD_RETURN_IF_ERROR(AppendNormalizedRun(text.substr(0, run), form, steps, out));
    text.remove_prefix(run);
  }
  return absl::OkStatus();
}

}  // namespace runahead
