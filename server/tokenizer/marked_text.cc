#include "server/tokenizer/marked_text.h"

#include <algorithm>

#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead {

int AnyOrigin::compare(const char32_t* a, const char32_t* b, size_t size) {
  const auto [x, y] = std::mismatch(a, a + size, b, eq);
  return x == a + size ? 0 : lt(*x, *y) ? -1 : 1;
}

const char32_t* AnyOrigin::find(const char32_t* text, size_t size, char32_t c) {
  const char32_t* found = std::find_if(text, text + size, [c](char32_t other) { return eq(c, other); });
  return found == text + size ? nullptr : found;
}

MarkedText FromUtf8(std::string_view utf8, bool own) {
  MarkedText text;
  for (size_t bytes = 0; !utf8.empty(); utf8.remove_prefix(bytes)) {
    const Utf8Step step = NextUtf8(utf8);
    bytes = step.bytes;
    text += (step.kind == Utf8Step::Kind::kCharacter ? FirstCharacter(utf8) : 0xFFFD) | (own ? kOwn : 0);
  }
  return text;
}

std::string ToUtf8(const MarkedText& text) {
  std::string utf8;
  for (const char32_t c : text) AppendCharacter(c & ~kOwn, utf8);
  return utf8;
}

std::string ShownText(const MarkedText& text) {
  std::string shown;
  for (const TextPart& part : Parts(text)) shown += part.parse_special ? part.text : "...";
  return shown;
}

std::vector<TextPart> Parts(const MarkedText& text) {
  std::vector<TextPart> parts;
  for (auto from = text.begin(), to = from; from != text.end(); from = to) {
    to = std::find_if(from, text.end(), [&](char32_t c) { return (c & kOwn) != (*from & kOwn); });
    parts.push_back({ToUtf8(MarkedText(from, to)), (*from & kOwn) != 0});
  }
  return parts;
}

}  // namespace runahead
