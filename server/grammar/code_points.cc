#include "server/grammar/code_points.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace runahead {
namespace {

std::string Escaped(char32_t character, absl::string_view special) {
  if (character < 0x20 || character == 0x7F || (character >= 0x80 && character <= 0xFFFF)) {
    return absl::StrFormat("\\u%04x", static_cast<uint32_t>(character));
  }
  if (character > 0xFFFF) return absl::StrFormat("\\u{%x}", static_cast<uint32_t>(character));
  const char c = static_cast<char>(character);
  return absl::StrCat(special.find(c) == absl::string_view::npos ? "" : "\\", absl::string_view(&c, 1));
}

}  // namespace

std::string EscapedCharacter(char32_t character) {
  return Escaped(character, "^$.*+?()[]{}|\\/");
}

std::string EscapedInClass(char32_t character) {
  return Escaped(character, "^-[]\\");
}

void CodePoints::Add(char32_t first, char32_t last) {
  ranges_.push_back({first, last});
  Merge();
}

void CodePoints::Add(const CodePoints& others) {
  ranges_.insert(ranges_.end(), others.ranges_.begin(), others.ranges_.end());
  Merge();
}

void CodePoints::Remove(const CodePoints& others) {
  Invert();
  Add(others);
  Invert();
}

void CodePoints::Invert() {
  std::vector<Range> inverse;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) inverse.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) inverse.push_back({next, kLastCodePoint});
  ranges_ = std::move(inverse);
}

void CodePoints::Merge() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> merged;
  for (const Range& range : ranges_) {
    if (!merged.empty() && range.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  ranges_ = std::move(merged);
}

std::string CodePoints::AsClass() const {
  if (ranges_.size() == 1 && ranges_[0].first == ranges_[0].last) return EscapedCharacter(ranges_[0].first);
  // What holds almost everything is shorter by what it does not hold, and what is left out is ASCII as a rule.
  const bool inverted = ranges_.back().last == kLastCodePoint && (ranges_.size() > 1 || ranges_[0].first > 0);
  CodePoints named = *this;
  if (inverted) named.Invert();
  std::string text = inverted ? "[^" : "[";
  for (const Range& range : named.ranges_) {
    absl::StrAppend(&text, EscapedInClass(range.first));
    if (range.last > range.first) absl::StrAppend(&text, "-", EscapedInClass(range.last));
  }
  return text + "]";
}

}  // namespace runahead
