#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "server/tokenizer/jinja/parser.h"

namespace runahead::jinja {
namespace {

using Named = std::vector<std::pair<std::string, Node>>;

Node Constant(size_t place, Value value) {
  return {place, [value = std::move(value)](Rendering&) { return value; }};
}

// Runs `run` for what the operands are.
template <typename F>
Node Apply(size_t place, F run, std::vector<Node> operands, Named named = {}) {
  return {place, [=](Rendering& r) {
            Call call{r};
            for (const Node& operand : operands) call.plain.push_back(operand(r));
            for (const auto& [name, operand] : named) call.named.emplace_back(name, operand(r));
            return run(call);
          }};
}

// The arguments behind an open bracket; those without names are put behind `plain`.
Named Arguments(Lexer& source, std::vector<Node>& plain) {
  Named named;
  source.Items(")", [&] {
    const std::string name = source.ArgumentName();
    if (!name.empty()) {
      named.emplace_back(name, Expression(source));
    } else {
      if (!named.empty()) source.FailHere("an argument without a name follows one that has one");
      plain.push_back(Expression(source));
    }
  });
  return named;
}

template <bool kTuple>
Value MakeList(Call& c) {
  return c.r.Make(List(std::move(c.plain), kTuple));
}

Node Number(Lexer& source) {
  const size_t place = source.place();
  const std::string number = source.TakeWord();
  int64_t whole = 0;
  double real = 0;
  if (absl::SimpleAtoi(number, &whole)) return Constant(place, whole);
  const bool fraction = number.find_first_of(".e") != std::string::npos;
  if (fraction && absl::SimpleAtod(number, &real) && std::isfinite(real)) return Constant(place, real);
  source.FailAt(place, "the number is too large, or is none");
}

// True, false, none, or a variable.
Node Variable(size_t place, const std::string& name) {
  if (name == "true" || name == "True") return Constant(place, true);
  if (name == "false" || name == "False") return Constant(place, false);
  if (name == "none" || name == "None") return Constant(place, None());
  return {place, [=, builtin = FindBuiltin(Builtin::kFunction, name)](Rendering& r) -> Value {
            if (const Value* value = r.scope->Find(name)) return *value;
            if (builtin == nullptr) return Missing(name);
            return std::make_shared<const Function>(Function{[=](Call& c) { return RunBuiltin(*builtin, c); }});
          }};
}

Node Primary(Lexer& source) {
  const size_t place = source.place();
  const auto quoted = [&] { return source.next() == '"' || source.next() == '\''; };
  if (quoted()) {
    std::string text;
    while (quoted()) text += source.String();
    return Literal(place, text);
  }
  if (absl::ascii_isdigit(source.next())) return Number(source);
  if (source.IsName() && !source.Is("not")) return Variable(place, source.Name());
  if (source.Take("(")) {
    Node inner = Tuple(source);
    source.Expect(")");
    return inner;
  }
  const bool dict = source.Take("{");
  if (!dict && !source.Take("[")) source.FailHere("expected an expression");
  std::vector<Node> nodes;
  source.Items(dict ? "}" : "]", [&] {
    nodes.push_back(Expression(source));
    if (!dict) return;
    source.Expect(":");
    nodes.push_back(Expression(source));
  });
  return Apply(place, dict ? MakeDict : MakeList<false>, std::move(nodes));
}

// The item or slice behind an open bracket.
Node Subscript(Lexer& source, const Node& node) {
  const auto bound = [&] {
    return source.Is(":") || source.Is("]") ? Constant(node.place(), None()) : Expression(source);
  };
  std::vector<Node> operands = {node, source.Is(":") ? bound() : Expression(source)};
  while (operands.size() < 4 && source.Take(":")) operands.push_back(bound());
  source.Expect("]");
  if (operands.size() > 2) return Apply(node.place(), Slice, operands);
  return Apply(
      node.place(), [](Call& c) { return Item(c[0], c[1], c.r); }, operands);
}

// Members, items, slices and calls of what `node` is.
Node Postfix(Lexer& source, Node node) {
  for (;; source.Deeper()) {
    if (source.Take(".")) {
      const Text name = FromUtf8(source.Name(), /*own=*/true);
      node = {node.place(), [=](Rendering& r) { return Member(node(r), name); }};
    } else if (source.Take("[")) {
      node = Subscript(source, node);
    } else if (source.Take("(")) {
      std::vector<Node> operands = {node};
      const Named named = Arguments(source, operands);
      node = Apply(node.place(), Invoke, operands, named);
    } else {
      return node;
    }
  }
}

Node Unary(Lexer& source) {
  const size_t place = source.place();
  if (!source.Take("-")) return Postfix(source, Primary(source));
  const auto nested = source.Nested();
  return Apply(place, Negative, {Unary(source)});
}

}  // namespace

Node Literal(size_t place, std::string_view text) {
  return Constant(place, std::make_shared<const Text>(FromUtf8(text, /*own=*/true)));
}

Node Expression(Lexer& source) {
  const auto nested = source.Nested();
  const size_t unknown = source.unknown.size();
  Node value = Operation(source);
  while (source.Take("if")) {
    source.Deeper();
    const Node condition = Operation(source), otherwise = source.Take("else") ? Expression(source) : Node();
    value = {value.place(), [=](Rendering& r) {
               if (Truth(condition(r))) return value(r);
               return otherwise ? otherwise(r) : Missing("if without else");
             }};
    source.unknown.resize(unknown);
  }
  return value;
}

Node Tuple(Lexer& source) {
  Node first = Expression(source);
  if (!source.Is(",")) return first;
  std::vector<Node> nodes = {first};
  while (source.Take(",") && !source.Is(")") && !source.AtEnd()) nodes.push_back(Expression(source));
  return Apply(first.place(), MakeList<true>, std::move(nodes));
}

Node Operation(Lexer& source, int strength) {
  constexpr int kNot = 3, kComparison = 4;
  const auto nested = source.Nested();
  const size_t begin = source.place();
  Node left = strength <= kNot && source.Take("not") ? Apply(begin, Not, {Operation(source, kNot)})
                                                     : Filters(source, Unary(source));
  for (int before = 0;; source.Deeper()) {
    const auto is = [&](const Operator& o) { return source.Is(o.symbol); };
    const auto found = std::find_if(Operators().begin(), Operators().end(), is);
    if (found == Operators().end() || found->strength < strength) return left;
    const bool compares = found->strength == kComparison;
    if (compares && before == kComparison) source.FailHere("comparisons in a row are not known here");
    before = found->strength;
    const size_t place = compares ? source.place() : begin;
    source.Take(found->symbol);
    if (found->symbol == "not") source.Expect("in");
    const Node right = Operation(source, before + 1);
    if (found->run != nullptr) {
      left = Apply(place, found->run, {left, right});
    } else {
      left = {place, [=, decides = found->symbol == "or"](Rendering& r) {
                const Value value = left(r);
                return Truth(value) == decides ? value : right(r);
              }};
    }
  }
}

Node Filters(Lexer& source, Node input) {
  for (;; source.Deeper()) {
    if (source.Take("|")) {
      input = FilterOrTest(source, Builtin::kFilter, input);
    } else if (source.Take("is")) {
      const bool negated = source.Take("not");
      input = FilterOrTest(source, Builtin::kTest, input);
      if (negated) input = Apply(input.place(), Not, {input});
    } else {
      return input;
    }
  }
}

Node FilterOrTest(Lexer& source, Builtin::Kind kind, const Node& input) {
  const size_t place = source.place();
  const std::string name = source.Name();
  const Builtin* builtin = FindBuiltin(kind, name);
  const auto problem =
      absl::StrCat("the ", kind == Builtin::kTest ? "test '" : "filter '", name, "' is not known here");
  if (builtin == nullptr) source.unknown.emplace_back(place, problem);
  const auto run = [=](Call& c) {
    if (builtin == nullptr) Fail(problem);
    return RunBuiltin(*builtin, c);
  };
  std::vector<Node> operands = {input};
  const Named named = source.Take("(") ? Arguments(source, operands) : Named();
  return Apply(place, run, operands, named);
}

}  // namespace runahead::jinja
