// Statements: how they are written, and what each of them does when it runs.
#include <algorithm>
#include <initializer_list>

#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/expressions.h"
#include "server/tokenizer/jinja/template.h"

namespace runahead::jinja {
namespace {

using Setter = std::function<void(Rendering& r, const Value& value)>;
using Leaving = Rendering::Leaving;

constexpr size_t kMaxBytes = size_t{512} << 10;

Value LoopAt(const std::vector<Value>& items, size_t index, Rendering& r) {
  const auto at = static_cast<int64_t>(index), size = static_cast<int64_t>(items.size());
  Dict loop;
  const auto set = [&loop](std::string_view name, Value value) {
    loop.Set(std::make_shared<const Text>(FromUtf8(name, /*own=*/true)), std::move(value));
  };
  set("index", at + 1);
  set("index0", at);
  set("revindex", size - at);
  set("revindex0", size - at - 1);
  set("first", at == 0);
  set("last", at == size - 1);
  set("length", size);
  if (at > 0) set("previtem", items[index - 1]);
  if (at + 1 < size) set("nextitem", items[index + 1]);
  return r.Make(std::move(loop));
}

class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Node Run() {
    Node body = Body({});
    if (!unknown_.empty()) throw FailureAt(source_, unknown_[0].first, unknown_[0].second);
    return body;
  }

 private:
  // Up to a tag that begins with one of `ends`, which stays; without them up to the end of the template.
  Node Body(std::initializer_list<std::string_view> ends) {
    const size_t place = now().place;
    std::vector<Node> statements;
    while (now().kind != Token::Kind::kEnd) {
      const Token& token = Next();
      if (token.kind == Token::Kind::kData) {
        statements.push_back({token.place, [text = FromUtf8(token.text, /*own=*/true)](Rendering& r) -> Value {
                                r.Write(text);
                                return {};
                              }});
      } else if (token.text == "{{") {
        statements.push_back(Output(Tuple()));
        Expect("}}");
      } else {
        const auto is = [this](std::string_view end) { return Is(end); };
        if (std::any_of(ends.begin(), ends.end(), is)) return Block(place, std::move(statements));
        statements.push_back(Statement(token.place));
        Expect("%}");
      }
    }
    if (ends.size() > 0) FailHere(Cat("the template ends without ", *(ends.end() - 1)));
    return Block(place, std::move(statements));
  }

  static Node Block(size_t place, std::vector<Node> statements) {
    return {place, [statements = std::move(statements)](Rendering& r) -> Value {
              for (size_t i = 0; i < statements.size() && r.leaving == Leaving::kNothing; ++i) statements[i](r);
              return {};
            }};
  }

  // What follows a tag's head: `%}body{% end`.
  Node BodyUntil(std::string_view end) {
    Expect("%}");
    Node body = Body({end});
    Next();
    return body;
  }

  // The same, in which loops around it cannot be left.
  Node ClosedBodyUntil(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Node body = BodyUntil(end);
    loops_ = loops;
    return body;
  }

  // What the body writes, as an expression.
  Node Captured(std::string_view end) {
    const Node body = ClosedBodyUntil(end);
    return {body.place(), [=](Rendering& r) { return r.Capture(body); }};
  }

  // `| filter | filter %}body{% end`, the same through filters. `begins`: the first one has no | before it.
  Node Filtered(std::string_view end, bool begins) {
    const auto body = std::make_shared<Node>();  // is read after the filters, and runs before them
    const Node input(now().place, [body](Rendering& r) { return (*body)(r); });
    const Node filtered = Filters(begins ? Filter(input) : input);
    *body = Captured(end);
    return filtered;
  }

  static Node Output(Node expression) {
    return {expression.place(), [=](Rendering& r) -> Value {
              r.Write(ToText(expression(r), r));
              return {};
            }};
  }

  Node Statement(size_t place) {
    const Nested nested(*this);
    const std::string tag = Name();
    if (tag == "if") return If(place);
    if (tag == "for") return For(place);
    if (tag == "set") return Set(place);
    if (tag == "macro") return Macro(place);
    if (tag == "generation") return Output(Captured("endgeneration"));
    if (tag == "filter") return Output(Filtered("endfilter", /*begins=*/true));
    if (tag != "break" && tag != "continue") {
      throw FailureAt(source_, place, Cat("the statement '", tag, "' is not known here"));
    }
    if (loops_ == 0) throw FailureAt(source_, place, Cat(tag, " outside a loop"));
    return {place, [leaving = tag == "break" ? Leaving::kLoop : Leaving::kRound](Rendering& r) -> Value {
              r.leaving = leaving;
              return {};
            }};
  }

  Node If(size_t place) {
    const size_t unknown = unknown_.size();
    std::vector<std::pair<Node, Node>> branches;
    do {
      const Node condition = Expression();
      Expect("%}");
      branches.emplace_back(condition, Body({"elif", "else", "endif"}));
    } while (Take("elif"));
    const Node otherwise = Next().text == "else" ? BodyUntil("endif") : Node();
    unknown_.resize(unknown);
    return {place, [=](Rendering& r) -> Value {
              for (const auto& [condition, body] : branches) {
                if (Truth(condition(r))) return body(r);
              }
              return otherwise ? otherwise(r) : Value();
            }};
  }

  Node For(size_t place) {
    const Setter set = Target();
    Expect("in");
    const Node list = Operation();
    const Node condition = Take("if") ? Expression() : Node();
    Expect("%}");
    ++loops_;
    const Node body = Body({"else", "endfor"});
    --loops_;
    const Node otherwise = Next().text == "else" ? BodyUntil("endfor") : Node();
    return {place, [=](Rendering& r) -> Value {
              ListPtr items = ToList(list(r), r);
              if (condition) items = Those(items, condition, set, r);
              for (size_t i = 0; i < items->items.size() && r.leaving != Leaving::kLoop; ++i) {
                const InnerScope inner(r);
                r.scope->names["loop"] = LoopAt(items->items, i, r);
                set(r, items->items[i]);
                body(r);
                if (r.leaving == Leaving::kRound) r.leaving = Leaving::kNothing;
              }
              r.leaving = Leaving::kNothing;
              const InnerScope inner(r);
              return items->items.empty() && otherwise ? otherwise(r) : Value();
            }};
  }

  static ListPtr Those(const ListPtr& items, const Node& condition, const Setter& set, Rendering& r) {
    List those;
    for (const Value& item : items->items) {
      const InnerScope inner(r);
      set(r, item);
      if (Truth(condition(r))) those.Add(item);
    }
    return std::get<ListPtr>(r.Make(std::move(those)));
  }

  // What is assigned to: a name, a member of a namespace, or several names.
  Setter Target() {
    std::vector<std::string> names = {Name()};
    if (Take(".")) {
      return [object = names[0], name = Name()](Rendering& r, const Value& value) {
        const Value* found = r.scope->Find(object);
        Dict* const* space = found == nullptr ? nullptr : As<Dict*>(*found);
        if (space == nullptr) Fail("only members of namespaces can be set");
        r.Set(**space, name, value);
      };
    }
    while (Take(",")) names.push_back(Name());
    if (names.size() == 1) return [=](Rendering& r, const Value& value) { r.scope->names[names[0]] = value; };
    return [=](Rendering& r, const Value& value) {
      const ListPtr list = ToList(value, r);
      const std::vector<Value>& items = list->items;
      if (items.size() != names.size()) Fail(items.size(), " values for ", names.size(), " names");
      for (size_t i = 0; i < items.size(); ++i) r.scope->names[names[i]] = items[i];
    };
  }

  Node Set(size_t place) {
    const Setter set = Target();
    const Node value = Take("=") ? Tuple() : Filtered("endset", /*begins=*/false);
    return {place, [=](Rendering& r) -> Value {
              set(r, value(r));
              return {};
            }};
  }

  Node Macro(size_t place) {
    const std::string macro = Name();
    std::vector<std::string> names;
    std::vector<Node> defaults;
    Expect("(");
    Items(")", [&] {
      names.push_back(Name());
      defaults.push_back(Take("=") ? Expression() : Node());
    });
    const Node body = ClosedBodyUntil("endmacro");
    return {
        place, [=](Rendering& r) -> Value {
          const Scope* scope = r.scope;
          if (scope->around != nullptr) Fail("a macro within a loop or macro is not known here");
          const auto run = [=](Call& call) {
            call.Bind(names, Cat("macro '", macro, "'"));
            const InnerScope inner(call.r, scope);
            for (size_t i = 0; i < names.size(); ++i) {
              const Undefined* value = As<Undefined>(call[i]);
              const bool given = value == nullptr || value->name != nullptr;
              call.r.scope->names[names[i]] = given ? call[i] : defaults[i] ? defaults[i](call.r) : Missing(names[i]);
            }
            return call.r.Capture(body);
          };
          r.scope->names[macro] = std::make_shared<const Function>(Function{run});
          return {};
        }};
  }

  int loops_ = 0;  // that this place is in, and that may be left there
};

std::string WithLineEnds(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1, 1) == "\n") continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

absl::StatusOr<Template> Template::Parse(std::string_view source) try {
  if (source.size() > kMaxBytes) Fail(source.size(), " bytes are more than ", kMaxBytes);
  Template result;
  result.source_ = WithLineEnds(source);
  result.root_ = StatementParser(result.source_).Run();
  return result;
} catch (const Failure& failure) {
  return failure.status;
}

absl::StatusOr<Text> Template::Render(std::vector<std::pair<std::string, Value>> variables, absl::Time now,
                                      KeepGoing keep_going, const Limits& limits) const {
  Scope scope;
  Rendering rendering(&scope, now, keep_going, limits);
  for (auto& [name, value] : variables) scope.names[name] = std::move(value);
  try {
    root_(rendering);
    return std::move(rendering.output);
  } catch (const Failure& failure) {
    if (failure.complete) return failure.status;
    return FailureAt(source_, rendering.place, std::string(failure.status.message())).status;
  }
}

}  // namespace runahead::jinja
