#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "server/tokenizer/jinja/parser.h"
#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsNameChar(char c) {
  return absl::ascii_isalnum(c) || c == '_';
}

}  // namespace

Failure FailureAt(std::string_view source, size_t place, const std::string& what) {
  constexpr size_t kShown = 60;
  const std::string_view before = source.substr(0, place), line = source.substr(before.size());
  const std::string shown = ReplaceInvalidUtf8(line.substr(0, std::min(line.find('\n'), kShown)));
  const auto number = 1 + std::count(before.begin(), before.end(), '\n');
  return {absl::InvalidArgumentError(absl::StrCat("line ", number, ", at `", shown, "`: ", what)), /*complete=*/true};
}

std::pair<std::string_view, char> Lexer::TextAndTag() {
  const size_t begin = at_;
  tag_ = source_.find('{', begin);
  while (tag_ != kNone && source_.find_first_of("{%#", tag_ + 1) != tag_ + 1) tag_ = source_.find('{', tag_ + 1);
  std::string_view text = source_.substr(begin, tag_ - begin);
  at_ = begin + text.size();
  if (tag_ == kNone) return {text, '\0'};
  const char kind = Ahead(1);
  const size_t line = text.rfind('\n') + 1;
  const bool line_begins = line > 0 || begin == 0 || source_[begin - 1] == '\n';
  at_ += 2;
  if (TakeBytes("-")) {
    text.remove_suffix(WhiteSpaceEnd(text));
  } else if (kind != '{' && !TakeBytes("+") && line_begins && WhiteSpaceEnd(text.substr(line)) == text.size() - line) {
    text = text.substr(0, line);
  }
  for (; kind == '#' && !TakeEnd("#}"); ++at_) {
    if (at_ >= source_.size()) FailAt(tag_, "the comment has no end");
  }
  if (kind != '#') Skip(0);
  return {text, kind};
}

bool Lexer::Is(std::string_view text) const {
  if (IsNameChar(text[0])) return Word() == text;
  const bool longer = (text == "=" || text == "<" || text == ">") && Ahead(1) == '=';
  const bool sign = text == "-" || text == "+" || text == "%";
  return source_.substr(at_, text.size()) == text && !longer && !(sign && AtEnd());
}

std::string Lexer::String() {
  size_t size = 1;
  for (; Ahead(size) != next(); size += Ahead(size) == '\\' ? 2 : 1) {
    if (at_ + size >= source_.size()) FailHere("the string has no end");
  }
  const std::string raw(source_.substr(at_ + 1, size - 1));
  std::string value;
  // \x has two digits in Python, and any number in C.
  if (raw.find("\\x") != std::string::npos || !absl::CUnescape(raw, &value)) {
    FailHere("an escape in the string is not known here");
  }
  Skip(size + 1);
  return value;
}

std::string_view Lexer::Word() const {
  const bool number = absl::ascii_isdigit(next());
  size_t size = 0;
  while (IsNameChar(Ahead(size)) || (number && Ahead(size) == '.' && absl::ascii_isdigit(Ahead(size + 1)))) ++size;
  return source_.substr(at_, size);
}

std::string Lexer::Skip(size_t bytes) {
  std::string skipped(source_.substr(at_, bytes));
  at_ += bytes;
  at_ += WhiteSpaceBegin(source_.substr(at_));
  return skipped;
}

// The end of a tag, which begins with - or + where the author said so; all but outputs take the line's end along.
bool Lexer::TakeEnd(std::string_view end) {
  const size_t before = at_;
  const bool strips = TakeBytes("-"), keeps = !strips && (end == "}}" || TakeBytes("+"));
  if (!TakeBytes(end)) return at_ = before, false;
  if (strips) Skip(0);
  if (!strips && !keeps) TakeBytes("\n");
  return true;
}

}  // namespace runahead::jinja
