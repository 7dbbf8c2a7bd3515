// Text whose characters know whose they are: a chat template's own, or those of whoever called. What is done with such
// text, in python.h and in server/tokenizer/jinja, keeps the marks: so no caller's text becomes a control token.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/tokenizer/tokenizer.h"

namespace runahead {

// The bit of characters that are the template's: control tokens may be in them. Others came from whoever called.
inline constexpr char32_t kOwn = 0x80000000;
// Characters are equal, and in order, whosever they are.
struct AnyOrigin : std::char_traits<char32_t> {
  static bool eq(char32_t a, char32_t b) { return (a | kOwn) == (b | kOwn); }
  static bool lt(char32_t a, char32_t b) { return (a | kOwn) < (b | kOwn); }
  static int compare(const char32_t* a, const char32_t* b, size_t size);
  static const char32_t* find(const char32_t* text, size_t size, char32_t c);
};
// Of code points with that bit; U"..." is not the template's.
using MarkedText = std::basic_string<char32_t, AnyOrigin>;

// U+FFFD stands for what is no UTF-8.
MarkedText FromUtf8(std::string_view utf8, bool own);
std::string ToUtf8(const MarkedText& text);
// For messages, which are logged: the template's own characters, and "..." for each part that came from whoever called.
std::string ShownText(const MarkedText& text);
// Neighbours of one origin are one part: a control token that the template puts together is found.
std::vector<TextPart> Parts(const MarkedText& text);

}  // namespace runahead
