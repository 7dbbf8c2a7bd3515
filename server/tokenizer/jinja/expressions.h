// Expressions: how they are written, and what each of them does when it runs.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/lexer.h"
#include "server/tokenizer/jinja/rendering.h"

namespace runahead::jinja {

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
  void Deeper() {
    constexpr int kMaxDepth = 200;
    if (++depth_ > kMaxDepth) FailHere(Cat("nested deeper than ", kMaxDepth));
  }

  const Token& now() const { return tokens_[at_]; }
  bool Is(std::string_view text, size_t ahead = 0) const {
    const Token& token = tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
    return (token.kind == Token::Kind::kName || token.kind == Token::Kind::kSymbol) && token.text == text;
  }
  const Token& Next() { return now().kind == Token::Kind::kEnd ? now() : tokens_[at_++]; }
  bool Take(std::string_view text) { return Is(text) && (Next(), true); }
  void Expect(std::string_view text) {
    if (!Take(text)) FailHere(Cat("expected ", text));
  }
  std::string Name() {
    if (now().kind != Token::Kind::kName) FailHere("expected a name");
    return Next().text;
  }
  [[noreturn]] void FailHere(std::string_view what) const { throw FailureAt(source_, now().place, what); }
  // Up to `end`, with commas between them.
  template <typename F>
  void Items(std::string_view end, F parse) {
    while (!Take(end)) {
      parse();
      if (!Is(end)) Expect(",");
    }
  }

  static Node Constant(size_t place, Value value) {
    return {place, [value = std::move(value)](Rendering&) { return value; }};
  }
  static Node Literal(size_t place, std::string_view text) {
    return Constant(place, std::make_shared<const Text>(FromUtf8(text, /*own=*/true)));
  }
  static Node Apply(size_t place, Run run, std::vector<Node> operands) {
    return {place, [=](Rendering& r) {
              Call call{r};
              for (const Node& operand : operands) call.plain.push_back(operand(r));
              return run(call);
            }};
  }

  // Maybe several with commas between them.
  Node Tuple() {
    Node first = Expression();
    if (!Is(",")) return first;
    std::vector<Node> nodes = {first};
    while (Take(",") && !Is(")") && !Is("%}") && !Is("}}")) nodes.push_back(Expression());
    return Apply(first.place(), MakeTuple, std::move(nodes));
  }

  Node Expression() {
    const Nested nested(*this);
    const size_t unknown = unknown_.size();
    Node value = Operation();
    while (Take("if")) {
      Deeper();
      const Node condition = Operation(), otherwise = Take("else") ? Expression() : Node();
      value = {value.place(), [=](Rendering& r) {
                 if (Truth(condition(r))) return value(r);
                 return otherwise ? otherwise(r) : Missing("if without else");
               }};
      unknown_.resize(unknown);
    }
    return value;
  }

  // Of operators that bind at least as much as `strength`.
  Node Operation(int strength = 0) {
    constexpr int kNot = 3, kComparison = 4;
    const Nested nested(*this);
    const size_t begin = now().place;
    Node left = strength <= kNot && Take("not") ? Apply(begin, Not, {Operation(kNot)}) : Filters(Unary());
    for (int before = 0;; Deeper()) {
      const bool negated = Is("not") && Is("in", 1);
      const auto is = [&](const Operator& o) { return negated ? o.symbol == "in" : Is(o.symbol); };
      const auto found = std::find_if(Operators().begin(), Operators().end(), is);
      if (found == Operators().end() || found->strength < strength) return left;
      const bool compares = found->strength == kComparison;
      if (compares && before == kComparison) FailHere("comparisons in a row are not known here");
      before = found->strength;
      const size_t place = compares ? now().place : begin;
      if (Next().text == "not") Next();
      const Node right = Operation(before + 1);
      if (found->run != nullptr) {
        left = Apply(place, found->run, {left, right});
        if (negated) left = Apply(place, Not, {left});
      } else {
        left = {place, [=, decides = found->symbol == "or"](Rendering& r) {
                  const Value value = left(r);
                  return Truth(value) == decides ? value : right(r);
                }};
      }
    }
  }

  Node Unary() {
    const size_t place = now().place;
    if (!Take("-")) return Postfix(Primary());
    const Nested nested(*this);
    return Apply(place, Negative, {Unary()});
  }

  Node Primary() {
    const Token& token = Next();
    if (token.kind == Token::Kind::kNumber) return Number(token);
    if (token.kind == Token::Kind::kString) {
      std::string text = token.text;
      while (now().kind == Token::Kind::kString) text += Next().text;
      return Literal(token.place, text);
    }
    if (token.kind == Token::Kind::kName) {
      if (token.text == "true" || token.text == "True") return Constant(token.place, true);
      if (token.text == "false" || token.text == "False") return Constant(token.place, false);
      if (token.text == "none" || token.text == "None") return Constant(token.place, None());
      if (token.text != "not") return Variable(token.place, token.text);
    }
    if (token.text == "(") {
      Node inner = Tuple();
      Expect(")");
      return inner;
    }
    const bool dict = token.text == "{";
    if (!dict && token.text != "[") throw FailureAt(source_, token.place, "expected an expression");
    std::vector<Node> nodes;
    Items(dict ? "}" : "]", [&] {
      nodes.push_back(Expression());
      if (!dict) return;
      Expect(":");
      nodes.push_back(Expression());
    });
    return Apply(token.place, dict ? MakeDict : MakeList, std::move(nodes));
  }

  Node Number(const Token& token) const {
    int64_t whole = 0;
    double real = 0;
    if (absl::SimpleAtoi(token.text, &whole)) return Constant(token.place, whole);
    const bool decimal = token.text.find_first_not_of("0123456789.e") == std::string::npos;
    const bool fraction = token.text.find_first_of(".e") != std::string::npos;
    if (decimal && fraction && absl::SimpleAtod(token.text, &real) && std::isfinite(real))
      return Constant(token.place, real);
    throw FailureAt(source_, token.place, "the number is too large, or is none");
  }

  static Node Variable(size_t place, const std::string& name) {
    return {place, [=, builtin = FindBuiltin(Builtin::kFunction, name)](Rendering& r) -> Value {
              if (const Value* value = r.scope->Find(name)) return *value;
              if (builtin == nullptr) return Missing(name);
              return std::make_shared<const Function>(Function{[=](Call& c) { return RunBuiltin(*builtin, c); }});
            }};
  }

  // Members, items, slices and calls of what `node` is.
  Node Postfix(Node node) {
    for (;; Deeper()) {
      const size_t place = node.place();
      if (Take(".")) {
        node = Apply(place, Member, {node, Literal(place, Name())});
      } else if (Take("[")) {
        const auto bound = [&] { return Is(":") || Is("]") ? Constant(place, None()) : Expression(); };
        std::vector<Node> operands = {node, Is(":") ? bound() : Expression()};
        while (operands.size() < 4 && Take(":")) operands.push_back(bound());
        Expect("]");
        node = Apply(place, operands.size() == 2 ? Item : Slice, operands);
      } else if (Take("(")) {
        node = WithArguments(/*open=*/true, place, {node}, [](Call& c) {
          const Value callee = c[0];
          if (As<Function>(callee) == nullptr) Fail("it cannot be called: ", Describe(callee));
          c.plain.erase(c.plain.begin());
          return As<Function>(callee)->run(c);
        });
      } else {
        return node;
      }
    }
  }

  // Runs `run` for `operands` and, behind an open bracket, the arguments that follow.
  template <typename F>
  Node WithArguments(bool open, size_t place, std::vector<Node> operands, F run) {
    std::vector<std::pair<std::string, Node>> named;
    const auto argument = [&] {
      if (now().kind == Token::Kind::kName && Is("=", 1)) {
        std::string name = Name();
        Next();
        named.emplace_back(std::move(name), Expression());
      } else {
        if (!named.empty()) FailHere("an argument without a name follows one that has one");
        operands.push_back(Expression());
      }
    };
    if (open) Items(")", argument);
    return {place, [=](Rendering& r) {
              Call call{r};
              for (const Node& operand : operands) call.plain.push_back(operand(r));
              for (const auto& [name, node] : named) call.named.emplace_back(name, node(r));
              return run(call);
            }};
  }

  // Filters and tests of `input`, as far as they follow.
  Node Filters(Node input) {
    for (;; Deeper()) {
      if (Take("|")) {
        input = BuiltIn(Builtin::kFilter, input);
      } else if (Take("is")) {
        const bool negated = Take("not");
        input = BuiltIn(Builtin::kTest, input);
        if (negated) input = Apply(input.place(), Not, {input});
      } else {
        return input;
      }
    }
  }

  // A filter or test, which stands there, of `input`.
  Node BuiltIn(Builtin::Kind kind, const Node& input) {
    const size_t place = now().place;
    const std::string name = Name();
    const Builtin* builtin = FindBuiltin(kind, name);
    const std::string problem =
        Cat("the ", kind == Builtin::kTest ? "test '" : "filter '", name, "' is not known here");
    if (builtin == nullptr) unknown_.emplace_back(place, problem);
    const auto run = [=](Call& c) {
      if (builtin == nullptr) Fail(problem);
      return RunBuiltin(*builtin, c);
    };
    return WithArguments(Take("("), place, {input}, run);
  }

  const std::string_view source_;
  // Filters and tests that are not there, with their places: an error unless a condition may keep them from being used.
  std::vector<std::pair<size_t, std::string>> unknown_;

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace runahead::jinja
