#include "server/tokenizer/jinja/lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsNameChar(char c) {
  return absl::ascii_isalnum(c) || c == '_';
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) DataAndTag();
    Add(Token::Kind::kEnd, "", at_);
    return std::move(tokens_);
  }

 private:
  void Add(Token::Kind kind, std::string_view text, size_t place) {
    tokens_.push_back({kind, std::string(text), place});
  }
  char Ahead(size_t by) const { return at_ + by < source_.size() ? source_[at_ + by] : '\0'; }
  bool Take(std::string_view text) {
    const bool is = source_.substr(at_, text.size()) == text;
    if (is) at_ += text.size();
    return is;
  }
  void SkipSpace() { at_ += WhiteSpaceBegin(source_.substr(at_)); }

  // Text up to a tag, without the space that the tag takes away, and the tag.
  void DataAndTag() {
    const size_t begin = at_;
    size_t tag = source_.find('{', begin);
    while (tag != kNone && source_.find_first_of("{%#", tag + 1) != tag + 1) tag = source_.find('{', tag + 1);
    std::string_view data = source_.substr(begin, tag - begin);
    if (tag == kNone) {
      at_ = source_.size();
      return Add(Token::Kind::kData, data, begin);
    }
    at_ = tag + 2;
    const bool output = source_[tag + 1] == '{';
    const size_t line = data.rfind('\n') + 1;
    const bool line_begins = line > 0 || begin == 0 || source_[begin - 1] == '\n';
    if (Take("-")) {
      data.remove_suffix(WhiteSpaceEnd(data));
    } else if (!output && !Take("+") && line_begins && WhiteSpaceEnd(data.substr(line)) == data.size() - line) {
      data = data.substr(0, line);
    }
    if (!data.empty()) Add(Token::Kind::kData, data, begin);
    source_[tag + 1] == '#' ? Comment(tag) : Tag(tag, output ? "}}" : "%}");
  }

  // The end of a tag, which begins with - or + where the author said so; all but outputs take the line's end along.
  bool TakeEnd(std::string_view end) {
    const size_t before = at_;
    const bool strips = Take("-"), keeps = !strips && (end == "}}" || Take("+"));
    if (!Take(end)) return at_ = before, false;
    if (strips) SkipSpace();
    if (!strips && !keeps) Take("\n");
    return true;
  }

  void Comment(size_t tag) {
    for (; !TakeEnd("#}"); ++at_) {
      if (at_ >= source_.size()) throw FailureAt(source_, tag, "the comment has no end");
    }
  }

  void Tag(size_t tag, std::string_view end) {
    Add(Token::Kind::kSymbol, source_.substr(tag, 2), tag);
    std::string open;  // brackets that are to be closed
    for (SkipSpace(); !open.empty() || !TakeEnd(end); SkipSpace()) {
      if (at_ >= source_.size()) throw FailureAt(source_, tag, Cat("it has no ", end));
      Word(open);
    }
    Add(Token::Kind::kSymbol, end, at_);
  }

  void Word(std::string& open) {
    const size_t begin = at_;
    const char c = source_[at_];
    if (c == '\'' || c == '"') return String(c);
    if (IsNameChar(c)) {
      const bool number = absl::ascii_isdigit(c);
      while (IsNameChar(Ahead(0))) ++at_;
      const bool real = number && Ahead(0) == '.' && absl::ascii_isdigit(Ahead(1));
      if (real) ++at_;
      while (real && absl::ascii_isdigit(Ahead(0))) ++at_;
      return Add(number ? Token::Kind::kNumber : Token::Kind::kName, source_.substr(begin, at_ - begin), begin);
    }
    for (const std::string_view symbol : {"//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                          "]",  "(",  ")",  "{",  "}",  ">", "<", "=", ".", ":", "|", ","}) {
      if (!Take(symbol)) continue;
      if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) throw FailureAt(source_, begin, "this bracket was not opened");
        open.pop_back();
      }
      return Add(Token::Kind::kSymbol, symbol, begin);
    }
    throw FailureAt(source_, begin, "this character means nothing here");
  }

  void String(char quote) {
    const size_t begin = at_++;
    for (; Ahead(0) != quote; at_ += Ahead(0) == '\\' ? 2 : 1) {
      if (at_ >= source_.size()) throw FailureAt(source_, begin, "the string has no end");
    }
    const std::string raw(source_.substr(begin + 1, at_++ - begin - 1));
    std::string value;
    // \x has two digits in Python, and any number in C.
    if (raw.find("\\x") != std::string::npos || !absl::CUnescape(raw, &value)) {
      throw FailureAt(source_, begin, "an escape in the string is not known here");
    }
    Add(Token::Kind::kString, value, begin);
  }

  const std::string_view source_;
  size_t at_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Lex(std::string_view source) {
  return Lexer(source).Run();
}

Failure FailureAt(std::string_view source, size_t place, std::string_view what) {
  constexpr size_t kShown = 60;
  const std::string_view before = source.substr(0, place), line = source.substr(before.size());
  const std::string shown = ReplaceInvalidUtf8(line.substr(0, std::min(line.find('\n'), kShown)));
  const auto number = 1 + std::count(before.begin(), before.end(), '\n');
  return {absl::InvalidArgumentError(Cat("line ", number, ", at `", shown, "`: ", what)), /*complete=*/true};
}

}  // namespace runahead::jinja
