#include "server/tokenizer/python.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "server/tokenizer/unicode.h"

namespace runahead {
namespace {

// "" for what stands between quotes as it is.
std::string Escape(char32_t c, char32_t quote, Quotes quotes) {
  constexpr std::string_view kShort = "\nn\rr\tt\bb\ff";  // a character, then its letter
  const bool python = quotes == Quotes::kPython;
  if (c == U'\\' || c == quote) return {'\\', static_cast<char>(c)};
  for (size_t i = 0; i < (python ? 6 : kShort.size()); i += 2) {
    if (c == static_cast<char32_t>(kShort[i])) return {'\\', kShort[i + 1]};
  }
  const auto code = static_cast<uint32_t>(c);
  if (python) {
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    const bool printable = c == U' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
    if (printable) return "";
    if (c < 0x100) return absl::StrFormat("\\x%02x", code);
    return c < 0x10000 ? absl::StrFormat("\\u%04x", code) : absl::StrFormat("\\U%08x", code);
  }
  if (c >= 0x20 && (c < 0x7f || quotes == Quotes::kJson)) return "";
  if (c < 0x10000) return absl::StrFormat("\\u%04x", code);
  return absl::StrFormat("\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF));
}

}  // namespace

bool IsSpace(char32_t c) {
  c &= ~kOwn;
  return (c >= 0x1c && c <= 0x1f) || IsWhiteSpace(c);
}

bool EndsLine(char32_t c) {
  c &= ~kOwn;
  return (c >= U'\n' && c <= U'\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

MarkedText Strip(const MarkedText& text, const MarkedText* chars, bool left, bool right) {
  const auto stays = [chars](char32_t c) {
    return chars == nullptr ? !IsSpace(c) : chars->find(c) == MarkedText::npos;
  };
  const auto begin = left ? std::find_if(text.begin(), text.end(), stays) : text.begin();
  auto end = text.end();
  while (right && end != begin && !stays(end[-1])) --end;
  return MarkedText(begin, end);
}

MarkedText ToCase(const MarkedText& text, bool upper) {
  constexpr char32_t kSharpS = 0xDF;
  MarkedText result;
  for (const char32_t c : text) {
    const auto code = static_cast<utf8proc_int32_t>(c & ~kOwn);
    const bool two = upper && code == kSharpS;
    const auto mapped = static_cast<char32_t>(two ? 'S' : upper ? utf8proc_toupper(code) : utf8proc_tolower(code));
    result.append(two ? 2 : 1, mapped | (c & kOwn));
  }
  return result;
}

MarkedText Capitalize(const MarkedText& text, bool every_word) {
  constexpr const char32_t* kBeforeWords = U"-({[<";
  MarkedText result;
  for (bool begins = true; const char32_t letter : text) {
    result += ToCase(MarkedText(1, letter), begins);
    begins = every_word && (IsSpace(letter) || MarkedText(kBeforeWords).find(letter) != MarkedText::npos);
  }
  return result;
}

MarkedText Indent(MarkedText text, const MarkedText& indent, bool first, bool empty) {
  if (text.ends_with(U'\r')) text.pop_back();
  MarkedText result = first ? indent : MarkedText();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, U"\r\n") == 0) continue;
    if (!EndsLine(text[i])) {
      result += text[i];
      continue;
    }
    result += U'\n' | kOwn;
    const bool is_empty = i + 1 == text.size() || EndsLine(text[i + 1]);
    if (!is_empty || empty) result += indent;
  }
  return result;
}

MarkedText Quote(const MarkedText& text, Quotes quotes) {
  const bool apostrophes = text.find(U'\'') != MarkedText::npos && text.find(U'"') == MarkedText::npos;
  const char32_t quote = quotes != Quotes::kPython || apostrophes ? U'"' : U'\'';
  MarkedText result(1, quote);
  for (const char32_t c : text) {
    const std::string escape = Escape(c & ~kOwn, quote, quotes);
    if (escape.empty()) {
      result.push_back(c);
    } else {
      result += FromUtf8(escape, /*own=*/false);
    }
  }
  result.push_back(quote);
  return result;
}

bool IsPart(const MarkedText& part, const MarkedText& text) {
  const std::string bytes = ToUtf8(text), searched = ToUtf8(part);
  return memmem(bytes.data(), bytes.size(), searched.data(), searched.size()) != nullptr;
}

std::optional<size_t> LastPlace(const MarkedText& part, const MarkedText& text, bool own) {
  // Backwards, for there is no memrmem; and \xff is in no character.
  const auto reversed = [](const MarkedText& of, bool all) {
    std::string bytes;
    for (const char32_t c : of) {
      if (all || (c & kOwn) == 0) {
        AppendCharacter(c & ~kOwn, bytes);
      } else {
        bytes += '\xff';
      }
    }
    std::reverse(bytes.begin(), bytes.end());
    return bytes;
  };
  const std::string bytes = reversed(text, own), searched = reversed(part, /*all=*/true);
  const void* found = memmem(bytes.data(), bytes.size(), searched.data(), searched.size());
  if (found == nullptr) return std::nullopt;
  const auto* const before = static_cast<const char*>(found) + searched.size();
  return std::count_if(before, bytes.data() + bytes.size(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void ForBetween(const MarkedText& text, const MarkedText& separator, int64_t most, OnPart on_part) {
  const std::string bytes = ToUtf8(text), searched = ToUtf8(separator);
  size_t at = 0, begin = 0;  // where the part begins, in bytes and in characters
  for (int64_t places = 0; places != most; ++places) {
    const void* found = memmem(bytes.data() + at, bytes.size() - at, searched.data(), searched.size());
    if (found == nullptr) break;
    const size_t next = static_cast<const char*>(found) - bytes.data();
    size_t size = 0;
    for (; at < next; ++at) size += (static_cast<unsigned char>(bytes[at]) & 0xC0) != 0x80;
    on_part(begin, size);
    begin += size + separator.size();
    at += searched.size();
  }
  on_part(begin, text.size() - begin);
}

void ForWords(const MarkedText& text, OnPart on_part) {
  for (auto at = text.begin(), end = at; at != text.end(); at = end) {
    at = std::find_if_not(at, text.end(), IsSpace);
    end = std::find_if(at, text.end(), IsSpace);
    if (at != end) on_part(at - text.begin(), end - at);
  }
}

std::optional<int64_t> Compute(int64_t a, char symbol, int64_t b) {
  __int128 result = a;
  if (symbol == '+') result += b;
  if (symbol == '-') result -= b;
  if (symbol == '*') result *= b;
  if (symbol == '%') result = (result % b + b) % b;
  if (result < INT64_MIN || result > INT64_MAX) return std::nullopt;
  return static_cast<int64_t>(result);
}

std::pair<int64_t, int64_t> SliceBounds(int64_t size, std::optional<int64_t> from, std::optional<int64_t> to,
                                        int64_t step) {
  const int64_t low = step > 0 ? 0 : -1, high = low + size;
  const auto bound = [&](std::optional<int64_t> at, int64_t otherwise) {
    return at ? std::clamp(*at < 0 ? *at + size : *at, low, high) : otherwise;
  };
  return {bound(from, step > 0 ? low : high), bound(to, step > 0 ? high : low)};
}

std::optional<int64_t> WholeNumber(const MarkedText& text) {
  const std::string digits = ToUtf8(text);
  int64_t whole = 0;
  double real = 0;
  if (absl::SimpleAtoi(digits, &whole)) return whole;
  if (absl::SimpleAtod(digits, &real) && std::abs(real) < 9e18) return static_cast<int64_t>(real);
  return std::nullopt;
}

std::string FloatText(double number) {
  const double size = std::abs(number);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  char buffer[32];
  const std::string digits(buffer, std::to_chars(buffer, buffer + sizeof(buffer), number, format).ptr);
  return plain && digits.find('.') == std::string::npos ? digits + ".0" : digits;
}

}  // namespace runahead
