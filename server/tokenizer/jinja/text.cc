#include "server/tokenizer/jinja/text.h"

#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead::jinja {
namespace {

bool IsLineEnd(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// Where the character that ends before `end` begins.
size_t CharBefore(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

void Text::Append(const Text& other) {
  bytes_ += other.bytes_;
  marks_ += other.marks_;
}

void Text::Append(const Text& other, size_t from, size_t size) {
  bytes_.append(other.bytes_, from, size);
  marks_.append(other.marks_, from, size);
}

void Text::Append(std::string_view bytes, bool own) {
  bytes_ += bytes;
  marks_.append(bytes.size(), own ? 1 : 0);
}

Text Text::Cut(size_t from, size_t size) const {
  Text cut;
  cut.Append(*this, from, size);
  return cut;
}

Text Text::With(std::string bytes) const {
  RUNAHEAD_CHECK(bytes.size() == bytes_.size());
  Text other;
  other.bytes_ = std::move(bytes);
  other.marks_ = marks_;
  return other;
}

std::vector<TextPart> Text::Parts() const {
  std::vector<TextPart> parts;
  for (size_t from = 0; from < bytes_.size();) {
    size_t to = marks_.find(marks_[from] == 0 ? '\1' : '\0', from);
    if (to == std::string::npos) to = bytes_.size();
    parts.push_back({bytes_.substr(from, to - from), marks_[from] != 0});
    from = to;
  }
  return parts;
}

bool IsSpace(char32_t c) {
  return (c >= 0x1c && c <= 0x1f) || IsWhiteSpace(c);
}

char32_t CharAt(std::string_view text, size_t at, size_t* bytes) {
  const auto first = static_cast<unsigned char>(text[at]);
  *bytes = 1;
  if (first < 0x80) return first;
  const Utf8Step step = NextUtf8(text.substr(at));
  if (step.kind != Utf8Step::Kind::kCharacter) return first;
  *bytes = step.bytes;
  return FirstCharacter(text.substr(at));
}

size_t CountChars(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

size_t OffsetOfChar(std::string_view text, size_t index) {
  for (size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80 && index-- == 0) return at;
  }
  return text.size();
}

Text Strip(const Text& text, std::optional<std::string_view> chars, bool left, bool right) {
  const std::string_view view = text.view();
  const auto goes = [&](size_t at, size_t* bytes) {
    const char32_t c = CharAt(view, at, bytes);
    return chars ? chars->find(view.substr(at, *bytes)) != std::string_view::npos : IsSpace(c);
  };
  size_t begin = 0, end = view.size(), bytes = 0;
  while (left && begin < end && goes(begin, &bytes)) begin += bytes;
  while (right && end > begin && goes(CharBefore(view, end), &bytes)) end = CharBefore(view, end);
  return text.Cut(begin, end - begin);
}

size_t Find(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* at = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return at == nullptr ? std::string_view::npos : static_cast<const char*>(at) - text.data();
}

Text ToCase(const Text& text, bool upper) {
  static const locale_t kUnicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.view().begin(), text.view().end(), ascii)) {
    std::string same(text.view());
    upper ? absl::AsciiStrToUpper(&same) : absl::AsciiStrToLower(&same);
    return text.With(std::move(same));
  }
  Text result;
  size_t bytes = 0;
  for (size_t at = 0; at < text.size(); at += bytes) {
    const char32_t c = CharAt(text.view(), at, &bytes);
    const bool known = c < 0x80 || (bytes > 1 && kUnicode != nullptr);
    char32_t mapped = c;
    if (c < 0x80 && (upper ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z')) mapped = c ^ 0x20;
    if (c >= 0x80 && known) mapped = upper ? towupper_l(c, kUnicode) : towlower_l(c, kUnicode);
    if (upper && c == 0xdf) {
      result.Append("SS", text.Cut(at, 1).Parts()[0].parse_special);
    } else if (mapped == c) {
      result.Append(text, at, bytes);
    } else {
      std::string changed;
      AppendCharacter(mapped, changed);
      result.Append(changed, text.Cut(at, 1).Parts()[0].parse_special);
    }
  }
  return result;
}

void ForLines(const Text& text, bool keep_ends, absl::FunctionRef<bool(Text line)> use) {
  size_t begin = 0, bytes = 0;
  for (size_t at = 0; at < text.size(); at += bytes) {
    const char32_t c = CharAt(text.view(), at, &bytes);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && text.view().substr(at + 1, 1) == "\n") bytes = 2;
    if (!use(text.Cut(begin, at - begin + (keep_ends ? bytes : 0)))) return;
    begin = at + bytes;
  }
  if (begin < text.size()) use(text.Cut(begin, text.size() - begin));
}

}  // namespace runahead::jinja
