#include "server/tokenizer/jinja/expressions.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "server/tokenizer/jinja/builtins.h"

namespace runahead::jinja {
namespace {

constexpr int kMaxDepth = 200;

Node Constant(size_t place, Value value) {
  return {place, [value = std::move(value)](Rendering&) { return value; }};
}

Node Literal(size_t place, std::string_view text) {
  return Constant(place, std::make_shared<const Text>(FromUtf8(text, /*own=*/true)));
}

Node Variable(size_t place, std::string name) {
  return {place, [name = std::move(name)](Rendering& r) -> Value {
            if (const Value* value = r.scope->Find(name)) return *value;
            const Builtin* function = FindBuiltin(Cat("function ", name));
            if (function == nullptr) return Missing(name);
            return std::make_shared<const Function>(Function{[=](Call& call) { return Run(*function, call); }});
          }};
}

void Evaluate(const Arguments& arguments, Call& call) {
  for (const Node& node : arguments.plain) call.plain.push_back(node(call.r));
  for (const auto& [name, node] : arguments.named) call.named.emplace_back(name, node(call.r));
}

}  // namespace

void ExpressionParser::Deeper() {
  if (++depth_ > kMaxDepth) FailHere(Cat("nested deeper than ", kMaxDepth));
}

bool ExpressionParser::Is(std::string_view text, size_t ahead) const {
  const Token& token = tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  return (token.kind == Token::Kind::kName || token.kind == Token::Kind::kSymbol) && token.text == text;
}

const Token& ExpressionParser::Next() {
  return now().kind == Token::Kind::kEnd ? now() : tokens_[at_++];
}

void ExpressionParser::Expect(std::string_view text) {
  if (!Take(text)) FailHere(Cat("expected ", text));
}

std::string ExpressionParser::Name() {
  if (now().kind != Token::Kind::kName) FailHere("expected a name");
  return Next().text;
}

Node ExpressionParser::Tuple() {
  const Node first = Expression();
  if (!Is(",")) return first;
  std::vector<Node> nodes = {first};
  while (Take(",") && !Is(")") && !Is("%}") && !Is("}}")) nodes.push_back(Expression());
  return {first.place(), [=](Rendering& r) {
            List list{{}, /*tuple=*/true};
            for (const Node& node : nodes) list.Add(node(r));
            return r.Make(std::move(list));
          }};
}

Node ExpressionParser::Expression() {
  const Nested nested(*this);
  const size_t unknown = unknown_.size();
  Node value = Operation();
  while (Take("if")) {
    Deeper();
    const Node condition = Operation();
    const Node otherwise = Take("else") ? Expression() : Node();
    value = {value.place(), [=, then = value](Rendering& r) {
               if (Truth(condition(r))) return then(r);
               return otherwise ? otherwise(r) : Missing("if without else");
             }};
    unknown_.resize(unknown);
  }
  return value;
}

Node ExpressionParser::Operation(int strength) {
  constexpr int kNot = 3, kComparison = 4;
  const Nested nested(*this);
  const size_t place = now().place;
  Node left;
  if (strength <= kNot && Take("not")) {
    left = {place, [operand = Operation(kNot)](Rendering& r) -> Value { return !Truth(operand(r)); }};
  } else {
    left = Filters(Unary());
  }
  for (int before = 0;;) {
    const bool negated = Is("not") && Is("in", 1);
    const auto is = [&](const Operator& o) { return negated ? o.symbol == "in" : Is(o.symbol); };
    const auto found = std::find_if(Operators().begin(), Operators().end(), is);
    if (found == Operators().end() || found->strength < strength) return left;
    Deeper();
    if (found->strength == kComparison && before == kComparison) FailHere("comparisons in a row are not known here");
    before = found->strength;
    if (negated) Next();
    const size_t at = before == kComparison ? Next().place : (Next(), place);
    const Node right = Operation(before + 1);
    left = {at, [=, &o = *found](Rendering& r) -> Value {
              Value first = left(r);
              if (o.run == nullptr) return Truth(first) == (o.symbol == "or") ? first : right(r);
              Value result = o.run(first, right(r), r);
              return negated ? !Truth(result) : result;
            }};
  }
}

Node ExpressionParser::Unary() {
  const size_t place = now().place;
  if (!Take("-")) return Postfix(Primary());
  const Nested nested(*this);
  return {place, [operand = Unary()](Rendering& r) -> Value {
            const Value value = operand(r);
            if (const double* real = As<double>(value)) return -*real;
            const auto whole = ToInt(value);
            if (!whole || *whole == INT64_MIN) Fail("it has no negative: ", Describe(value));
            return -*whole;
          }};
}

Node ExpressionParser::Primary() {
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
    const Node inner = Tuple();
    Expect(")");
    return inner;
  }
  if (token.text == "[" || token.text == "{") return Display(token.text == "{", token.place);
  throw FailureAt(source_, token.place, "expected an expression");
}

Node ExpressionParser::Number(const Token& token) const {
  int64_t whole = 0;
  double real = 0;
  if (absl::SimpleAtoi(token.text, &whole)) return Constant(token.place, whole);
  const bool digits = token.text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits && absl::SimpleAtod(token.text, &real)) return Constant(token.place, real);
  throw FailureAt(source_, token.place, "the number is too large, or is none");
}

Node ExpressionParser::Display(bool dict, size_t place) {
  std::vector<std::pair<Node, Node>> items;
  Items(dict ? "}" : "]", [&] {
    Node key;
    if (dict) {
      key = Expression();
      Expect(":");
    }
    items.emplace_back(key, Expression());
  });
  return {place, [=](Rendering& r) {
            List list;
            Dict made;
            for (const auto& [key, value] : items) {
              const Value name = dict ? key(r) : Value();
              if (dict && As<Text>(name) == nullptr)
                Fail("the key of a dict must be a string here, and ", Describe(name));
              dict ? made.Set(std::get<TextPtr>(name), value(r)) : list.Add(value(r));
            }
            return dict ? r.Make(std::move(made)) : r.Make(std::move(list));
          }};
}

Node ExpressionParser::Postfix(Node node) {
  for (;; Deeper()) {
    const size_t place = node.place();
    if (Take(".")) {
      node = {place, [object = node, name = Name()](Rendering& r) { return Member(object(r), name); }};
    } else if (Take("[")) {
      node = Subscript(node);
    } else if (Take("(")) {
      node = {place, [callee = node, arguments = ArgumentsThatFollow()](Rendering& r) {
                const Value function = callee(r);
                Call call{r};
                Evaluate(arguments, call);
                if (As<Function>(function) == nullptr) Fail("it cannot be called: ", Describe(function));
                return As<Function>(function)->run(call);
              }};
    } else {
      return node;
    }
  }
}

Node ExpressionParser::Subscript(Node object) {
  const size_t place = object.place();
  const auto bound = [&] { return Is(":") || Is("]") ? Constant(place, None()) : Expression(); };
  const Node first = Is(":") ? bound() : Expression();
  if (Take("]")) return {place, [=](Rendering& r) { return Item(object(r), first(r), r); }};
  Expect(":");
  const Node last = bound(), step = Take(":") ? bound() : Constant(place, None());
  Expect("]");
  return {place, [=](Rendering& r) { return Slice(object(r), first(r), last(r), step(r), r); }};
}

Arguments ExpressionParser::ArgumentsThatFollow() {
  Arguments arguments;
  Items(")", [&] {
    if (now().kind == Token::Kind::kName && Is("=", 1)) {
      std::string name = Name();
      Next();
      arguments.named.emplace_back(std::move(name), Expression());
    } else {
      if (!arguments.named.empty()) FailHere("an argument without a name follows one that has one");
      arguments.plain.push_back(Expression());
    }
  });
  return arguments;
}

Node ExpressionParser::Filters(Node input) {
  for (;; Deeper()) {
    if (Take("|")) {
      input = Filter(input);
    } else if (Take("is")) {
      const bool negated = Take("not");
      const Node test = BuiltIn("test ", input);
      input = !negated ? test : Node(test.place(), [=](Rendering& r) -> Value { return !Truth(test(r)); });
    } else {
      return input;
    }
  }
}

Node ExpressionParser::Filter(Node input) {
  return BuiltIn("filter ", std::move(input));
}

Node ExpressionParser::BuiltIn(std::string name, Node input) {
  const size_t place = now().place;
  name += Name();
  const Builtin* builtin = FindBuiltin(name);
  if (builtin == nullptr) unknown_.emplace_back(place, Cat("the ", name, " is not known here"));
  const Arguments arguments = Take("(") ? ArgumentsThatFollow() : Arguments();
  return {place, [=](Rendering& r) {
            if (builtin == nullptr) Fail("the ", name, " is not known here");
            Call call{r, {input(r)}};
            Evaluate(arguments, call);
            return Run(*builtin, call);
          }};
}

}  // namespace runahead::jinja
