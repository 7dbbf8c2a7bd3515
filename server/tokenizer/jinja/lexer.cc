#include "server/tokenizer/jinja/lexer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/jinja/text.h"
#include "server/tokenizer/jinja/value.h"
#include "server/tokenizer/unicode.h"

namespace runahead::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

std::string_view StripRight(std::string_view text) {
  return text.substr(0, Strip(Text(text, /*own=*/true), std::nullopt, false, true).size());
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) RUNAHEAD_RETURN_IF_ERROR(DataAndTag());
    Add(Token::Kind::kEnd, "", source_.size());
    return std::move(tokens_);
  }

 private:
  using Kind = Token::Kind;

  void Add(Kind kind, std::string_view text, size_t place) { tokens_.push_back({kind, std::string(text), place}); }
  absl::Status Error(size_t place, std::string_view what) const { return SyntaxError(source_, place, what); }
  bool Is(std::string_view text) const { return source_.substr(at_, text.size()) == text; }
  bool Take(std::string_view text) {
    const bool is = Is(text);
    if (is) at_ += text.size();
    return is;
  }
  void SkipSpace() {
    size_t bytes = 0;
    while (at_ < source_.size() && IsSpace(CharAt(source_, at_, &bytes))) at_ += bytes;
  }

  // The end of a tag, which begins with - or + where the author said so; a block takes the end of its line along.
  bool TakeEnd(std::string_view end, bool block) {
    const size_t before = at_;
    const bool strips = Take("-");
    const bool keeps = !strips && block && Take("+");
    if (!Take(end)) return at_ = before, false;
    if (strips) SkipSpace();
    if (block && !strips && !keeps) Take("\n");
    line_begins_ = source_[at_ - 1] == '\n';
    return true;
  }

  // Text from `begin` up to a tag at `end`, without what the tag strips. at_ is behind the tag's first two characters.
  void DataBefore(size_t begin, size_t end, bool output) {
    std::string_view data = source_.substr(begin, end - begin);
    if (Take("-")) {
      data = StripRight(data);
    } else if (!Take("+") && !output) {
      const size_t line = data.rfind('\n') == kNone ? 0 : data.rfind('\n') + 1;
      if ((line > 0 || line_begins_) && StripRight(data.substr(line)).empty()) data = data.substr(0, line);
    }
    if (!data.empty()) Add(Kind::kData, data, begin);
  }

  absl::Status DataAndTag() {
    const size_t begin = at_;
    size_t tag = begin;
    const auto opens = [&](char c) { return c == '%' || c == '{' || c == '#'; };
    while (tag + 1 < source_.size() && !(source_[tag] == '{' && opens(source_[tag + 1]))) ++tag;
    if (tag + 1 >= source_.size()) {
      Add(Kind::kData, source_.substr(begin), begin);
      at_ = source_.size();
      return absl::OkStatus();
    }
    const char kind = source_[tag + 1];
    at_ = tag + 2;
    DataBefore(begin, tag, kind == '{');
    if (kind == '#') return Comment(tag);
    if (kind == '%' && TakeRawBegin()) return Raw(tag);
    Add(kind == '%' ? Kind::kBlockBegin : Kind::kOutputBegin, "", tag);
    return Tag(tag, kind == '%');
  }

  absl::Status Comment(size_t tag) {
    const size_t end = source_.find("#}", at_);
    if (end == kNone) return Error(tag, "the comment has no end");
    at_ = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? end - 1 : end;
    TakeEnd("#}", /*block=*/true);
    return absl::OkStatus();
  }

  bool TakeRawBegin() {
    const size_t before = at_;
    SkipSpace();
    if (Take("raw")) {
      SkipSpace();
      const bool strips = Take("-");
      if (Take("%}")) {
        if (strips) SkipSpace();
        line_begins_ = source_[at_ - 1] == '\n';
        return true;
      }
    }
    at_ = before;
    return false;
  }

  absl::Status Raw(size_t tag) {
    const size_t begin = at_;
    for (size_t end = source_.find("{%", at_); end != kNone; end = source_.find("{%", end + 1)) {
      const size_t count = tokens_.size();
      at_ = end + 2;
      DataBefore(begin, end, /*output=*/false);
      SkipSpace();
      if (Take("endraw")) {
        SkipSpace();
        if (TakeEnd("%}", /*block=*/true)) return absl::OkStatus();
      }
      tokens_.resize(count, {Kind::kEnd, "", 0});
    }
    return Error(tag, "raw has no endraw");
  }

  absl::Status Tag(size_t tag, bool block) {
    std::string open;  // brackets that are to be closed
    while (at_ < source_.size()) {
      SkipSpace();
      if (open.empty() && TakeEnd(block ? "%}" : "}}", block)) {
        Add(block ? Kind::kBlockEnd : Kind::kOutputEnd, "", at_);
        return absl::OkStatus();
      }
      if (at_ < source_.size()) RUNAHEAD_RETURN_IF_ERROR(Word(open));
    }
    return Error(tag, block ? "the block has no %}" : "the output has no }}");
  }

  absl::Status Word(std::string& open) {
    const size_t begin = at_;
    const char c = source_[at_];
    if (c == '\'' || c == '"') return String();
    if (absl::ascii_isdigit(c)) return Number(), absl::OkStatus();
    if (absl::ascii_isalpha(c) || c == '_') {
      while (at_ < source_.size() && (absl::ascii_isalnum(source_[at_]) || source_[at_] == '_')) ++at_;
      Add(Kind::kName, source_.substr(begin, at_ - begin), begin);
      return absl::OkStatus();
    }
    for (const std::string_view symbol : {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                          "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","}) {
      if (!Take(symbol)) continue;
      if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) return Error(begin, "this bracket was not opened");
        open.pop_back();
      }
      Add(Kind::kSymbol, symbol, begin);
      return absl::OkStatus();
    }
    return Error(begin, "this character means nothing here");
  }

  void Number() {
    const size_t begin = at_;
    const auto digits = [&] {
      while (at_ < source_.size() && (absl::ascii_isdigit(source_[at_]) || source_[at_] == '_')) ++at_;
    };
    const auto digit_at = [&](size_t at) { return at < source_.size() && absl::ascii_isdigit(source_[at]); };
    digits();
    Kind kind = Kind::kInteger;
    const bool member = begin > 0 && source_[begin - 1] == '.';  // x.0
    if (Is(".") && digit_at(at_ + 1) && !member) {
      kind = Kind::kFloat;
      ++at_;
      digits();
    }
    if (Is("e") || Is("E")) {
      const size_t sign = at_ + 1 < source_.size() && (source_[at_ + 1] == '-' || source_[at_ + 1] == '+') ? 1 : 0;
      if (digit_at(at_ + 1 + sign)) {
        kind = Kind::kFloat;
        at_ += 1 + sign;
        digits();
      }
    }
    std::string text(source_.substr(begin, at_ - begin));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Add(kind, text, begin);
  }

  absl::Status String() {
    const size_t begin = at_;
    const char quote = source_[at_++];
    std::string value;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] != '\\') {
        value += source_[at_++];
      } else {
        RUNAHEAD_RETURN_IF_ERROR(Escape(value));
      }
    }
    if (at_ >= source_.size()) return Error(begin, "the string has no end");
    ++at_;
    Add(Kind::kString, value, begin);
    return absl::OkStatus();
  }

  absl::Status Escape(std::string& value) {
    constexpr std::string_view kMeanings = "n\nt\tr\rb\bf\fa\av\v\\\\''\"\"";  // a letter, then what it stands for
    const size_t begin = at_++;
    if (at_ >= source_.size()) return Error(begin, "the string has no end");
    const char c = source_[at_++];
    if (c == '\n') return absl::OkStatus();
    for (size_t i = 0; i < kMeanings.size(); i += 2) {
      if (c == kMeanings[i]) return value += kMeanings[i + 1], absl::OkStatus();
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      if (absl::ascii_isdigit(c) || c == 'N') return Error(begin, "this escape is not known");
      value += '\\';
      value += c;
      return absl::OkStatus();
    }
    uint32_t code = 0;
    const std::string_view hex = source_.substr(at_, digits);
    if (hex.size() < digits || !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit) ||
        !absl::SimpleHexAtoi(std::string(hex), &code) || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return Error(begin, "this is no character");
    }
    at_ += digits;
    AppendCharacter(code, value);
    return absl::OkStatus();
  }

  const std::string_view source_;
  size_t at_ = 0;
  bool line_begins_ = true;  // what was read last ended a line
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Lex(std::string_view source) {
  return Lexer(source).Run();
}

std::string NormalizeLineEnds(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1, 1) == "\n") continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

absl::Status SyntaxError(std::string_view source, size_t place, std::string_view what) {
  return absl::InvalidArgumentError(Cat(PlaceIn(source, place), ": ", what));
}

}  // namespace runahead::jinja
