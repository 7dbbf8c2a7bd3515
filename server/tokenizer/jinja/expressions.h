// Expressions: how they are written, and what each of them does when it runs.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/tokenizer/jinja/lexer.h"
#include "server/tokenizer/jinja/rendering.h"

namespace runahead::jinja {

// What stands between the brackets of a call.
struct Arguments {
  std::vector<Node> plain;
  std::vector<std::pair<std::string, Node>> named;
};

// Goes over the tokens of a template. Everything throws Failure.
class ExpressionParser {
 public:
  // `source` outlives it.
  explicit ExpressionParser(std::string_view source) : source_(source), tokens_(Lex(source)) {}

 protected:
  // What is parsed while this lives is nested in something: what goes down a tree needs stack for it.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser) : depth_(parser.depth_), before_(depth_) { parser.Deeper(); }
    ~Nested() { depth_ = before_; }

   private:
    int& depth_;
    const int before_;
  };
  // The same, until the innermost Nested ends.
  void Deeper();

  const Token& now() const { return tokens_[at_]; }
  bool Is(std::string_view text, size_t ahead = 0) const;
  const Token& Next();
  bool Take(std::string_view text) { return Is(text) && (Next(), true); }
  void Expect(std::string_view text);
  std::string Name();
  [[noreturn]] void FailHere(std::string_view what) const { throw FailureAt(source_, now().place, what); }
  // Up to `end`, with commas between them.
  template <typename F>
  void Items(std::string_view end, F parse) {
    while (!Take(end)) {
      parse();
      if (!Is(end)) Expect(",");
    }
  }

  Node Expression();
  // Maybe several with commas between them.
  Node Tuple();
  // Without `if` at the end, of operators that bind at least as much as `strength`.
  Node Operation(int strength = 0);
  // The filters and tests of `input` that follow.
  Node Filters(Node input);
  Node Filter(Node input);

  const std::string_view source_;
  // Filters and tests that are not there, with their places: an error unless a condition may keep them from being used.
  std::vector<std::pair<size_t, std::string>> unknown_;

 private:
  Node Unary();
  Node Primary();
  Node Display(bool dict, size_t place);
  Node Number(const Token& token) const;
  Node Postfix(Node node);
  Node Subscript(Node object);
  Arguments ArgumentsThatFollow();
  // A filter or test that is there, applied to `input`.
  Node BuiltIn(std::string name, Node input);

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace runahead::jinja
