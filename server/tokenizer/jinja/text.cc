#include "server/tokenizer/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>

#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead::jinja {

int AnyOrigin::compare(const char32_t* a, const char32_t* b, size_t size) {
  const auto [x, y] = std::mismatch(a, a + size, b, eq);
  return x == a + size ? 0 : lt(*x, *y) ? -1 : 1;
}

const char32_t* AnyOrigin::find(const char32_t* text, size_t size, char32_t c) {
  const char32_t* found = std::find_if(text, text + size, [c](char32_t other) { return eq(c, other); });
  return found == text + size ? nullptr : found;
}

Text FromUtf8(std::string_view utf8, bool own) {
  Text text;
  while (!utf8.empty()) {
    const Utf8Step step = NextUtf8(utf8);
    const char32_t c = step.kind == Utf8Step::Kind::kCharacter ? FirstCharacter(utf8) : 0xFFFD;
    text += c | (own ? kOwn : 0);
    utf8.remove_prefix(step.bytes);
  }
  return text;
}

std::string ToUtf8(const Text& text) {
  std::string utf8;
  for (const char32_t c : text) AppendCharacter(c & ~kOwn, utf8);
  return utf8;
}

std::vector<TextPart> Parts(const Text& text) {
  std::vector<TextPart> parts;
  for (auto from = text.begin(); from != text.end();) {
    const bool own = (*from & kOwn) != 0;
    const auto to = std::find_if(from, text.end(), [own](char32_t c) { return own != ((c & kOwn) != 0); });
    parts.push_back({ToUtf8(Text(from, to)), own});
    from = to;
  }
  return parts;
}

bool IsSpace(char32_t c) {
  c &= ~kOwn;
  return (c >= 0x1c && c <= 0x1f) || IsWhiteSpace(c);
}

Text Strip(const Text& text, const Text* chars, bool left, bool right) {
  const auto stays = [chars](char32_t c) { return chars == nullptr ? !IsSpace(c) : chars->find(c) == Text::npos; };
  const auto begin = left ? std::find_if(text.begin(), text.end(), stays) : text.begin();
  auto end = text.end();
  while (right && end != begin && !stays(end[-1])) --end;
  return Text(begin, end);
}

Text ToCase(const Text& text, bool upper) {
  constexpr char32_t kSharpS = 0xDF;
  Text result;
  for (const char32_t c : text) {
    const char32_t own = c & kOwn;
    const auto code = static_cast<utf8proc_int32_t>(c & ~kOwn);
    const bool two = upper && code == kSharpS;
    const auto mapped = static_cast<char32_t>(two ? 'S' : upper ? utf8proc_toupper(code) : utf8proc_tolower(code));
    result.append(two ? 2 : 1, mapped | own);
  }
  return result;
}

}  // namespace runahead::jinja
