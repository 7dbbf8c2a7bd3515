// Strings of a template, which know of each character whether it came from the template or from whoever called.
#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "server/tokenizer/tokenizer.h"

namespace runahead::jinja {

// The bit of characters that are the template's: control tokens may be in them.
inline constexpr char32_t kOwn = 0x80000000;

// Characters are equal, and in order, whosever they are.
struct AnyOrigin : std::char_traits<char32_t> {
  static bool eq(char32_t a, char32_t b) { return (a | kOwn) == (b | kOwn); }
  static bool lt(char32_t a, char32_t b) { return (a | kOwn) < (b | kOwn); }
  static int compare(const char32_t* a, const char32_t* b, size_t size);
  static const char32_t* find(const char32_t* text, size_t size, char32_t c);
};
// Of code points with that bit; U"..." is nobody's, hence not the template's.
using Text = std::basic_string<char32_t, AnyOrigin>;

// U+FFFD stands for what is no UTF-8.
Text FromUtf8(std::string_view utf8, bool own);
std::string ToUtf8(const Text& text);
// Neighbours of one origin are one part: a control token that the template puts together is found.
std::vector<TextPart> Parts(const Text& text);

// Python's idea of white space: Unicode's, and four separators of ASCII.
bool IsSpace(char32_t c);
// Without white space, or the characters of `chars` if it is not null, at the ends that are named.
Text Strip(const Text& text, const Text* chars, bool left, bool right);
// One character to one; of those that become two, only the German sharp s does.
Text ToCase(const Text& text, bool upper);

template <typename... Pieces>
std::string Cat(const Pieces&... pieces) {
  std::ostringstream out;
  (out << ... << pieces);
  return out.str();
}

}  // namespace runahead::jinja
