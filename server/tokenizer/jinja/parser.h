// Reads the source of a template: names and symbols one after the other, and expressions as a whole.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/rendering.h"

namespace runahead::jinja {

// What is wrong in the source, and where: "line 3, at `{{ x.y }`: ...".
Failure FailureAt(std::string_view source, size_t place, const std::string& what);

// All that is wrong is thrown as a Failure that names the place. White space is as trim_blocks and lstrip_blocks have
// it, and nothing between names and symbols.
class Lexer {
 public:
  // `source` has \n for every end of a line, and outlives it.
  explicit Lexer(std::string_view source) : source_(source) {}

  // Text up to a tag, without the space that the tag takes away, and the character that tells what tag it is: { or %,
  // # of a comment, which is behind it then, or \0 at the template's end.
  std::pair<std::string_view, char> TextAndTag();
  size_t tag() const { return tag_; }  // where the last one began

  // The rest is about what is within a tag, at the place where it is now.
  size_t place() const { return at_; }
  char next() const { return Ahead(0); }  // \0 at the end
  // Whether this name or symbol is next.
  bool Is(std::string_view text) const;
  bool Take(std::string_view text) { return Is(text) && !Skip(text.size()).empty(); }
  void Expect(const char* text) {
    if (!Take(text)) FailHere(absl::StrCat("expected ", text));
  }
  bool IsName() const { return !Word().empty() && !absl::ascii_isdigit(next()); }
  std::string Name() {
    if (!IsName()) FailHere("expected a name");
    return TakeWord();
  }
  std::string TakeWord() { return Skip(Word().size()); }  // a name or number
  std::string String();  // with its quotes, which are next, but without them in the result
  // The name in `name=`, which is taken; or else "".
  std::string ArgumentName() {
    const size_t before = at_;
    std::string name = IsName() ? TakeWord() : "";
    if (!name.empty() && Take("=")) return name;
    at_ = before;
    return "";
  }
  // Up to `end`, with commas between them.
  template <typename F>
  void Items(const char* end, F parse) {
    while (!Take(end)) {
      parse();
      if (!Is(end)) Expect(",");
    }
  }
  // Whether the tag ends here; and the end, }} or %}.
  bool AtEnd() const {
    const size_t sign = next() == '-' || next() == '+' ? 1 : 0;
    return (Ahead(sign) == '%' || Ahead(sign) == '}') && Ahead(sign + 1) == '}';
  }
  void End(const char* end) {
    if (!TakeEnd(end)) FailHere(absl::StrCat("expected ", end));
  }

  [[noreturn]] void FailAt(size_t place, const std::string& what) const { throw FailureAt(source_, place, what); }
  [[noreturn]] void FailHere(const std::string& what) const {
    at_ < source_.size() ? FailAt(at_, what) : FailAt(tag_, "it has no end");
  }

  // What is parsed while the result lives is nested in something: what goes down a tree needs stack for it.
  auto Nested() {
    Deeper();
    return absl::MakeCleanup([this, before = depth_ - 1] { depth_ = before; });
  }
  // The same, until the innermost of these ends.
  void Deeper() {
    constexpr int kMaxDepth = 200;
    if (++depth_ > kMaxDepth) FailHere(absl::StrCat("nested deeper than ", kMaxDepth));
  }

  // Filters and tests that are not there, with their places: an error unless a condition may keep them from being used.
  std::vector<std::pair<size_t, std::string>> unknown;

 private:
  char Ahead(size_t by) const { return at_ + by < source_.size() ? source_[at_ + by] : '\0'; }
  std::string_view Word() const;  // what TakeWord takes; "" where there is neither
  // The next bytes, and the space behind them.
  std::string Skip(size_t bytes);
  bool TakeBytes(std::string_view bytes) {
    const bool are = source_.substr(at_, bytes.size()) == bytes;
    if (are) at_ += bytes.size();
    return are;
  }
  bool TakeEnd(std::string_view end);

  const std::string_view source_;
  size_t at_ = 0, tag_ = 0;
  int depth_ = 0;
};

// Expressions, ready to run, of what is next.
Node Expression(Lexer& source);
// Maybe several with commas between them.
Node Tuple(Lexer& source);
// Without `if`, of operators that bind at least as much as `strength`.
Node Operation(Lexer& source, int strength = 0);
// Filters and tests of `input`, as far as they follow.
Node Filters(Lexer& source, Node input);
// A filter or test, which stands there, of `input`.
Node FilterOrTest(Lexer& source, Builtin::Kind kind, const Node& input);

// The template's own text.
Node Literal(size_t place, std::string_view text);

}  // namespace runahead::jinja
