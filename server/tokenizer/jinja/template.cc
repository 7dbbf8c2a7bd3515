// Statements: how they are written, and what each of them does when it runs; and templates as a whole.
#include "server/tokenizer/jinja/template.h"

#include <initializer_list>

#include "absl/strings/str_replace.h"
#include "server/tokenizer/jinja/expressions.h"

namespace runahead::jinja {
namespace {

constexpr size_t kMaxBytes = size_t{512} << 10;

using Leaving = Rendering::Leaving;

// What `loop` is; `around`: of the loop around it, if there is one.
Value LoopAt(const std::vector<Value>& items, size_t index, const Value* around, Rendering& r) {
  const auto at = static_cast<int64_t>(index), size = static_cast<int64_t>(items.size());
  const Dict* outer = around == nullptr ? nullptr : As<Dict>(*around);
  const Value* depth = outer == nullptr ? nullptr : outer->Get("depth0");
  const int64_t depth0 = depth == nullptr ? 0 : 1 + ToInt(*depth).value_or(0);
  const std::pair<const char32_t*, Value> members[] = {
      {U"index", at + 1},  {U"index0", at},           {U"revindex", size - at}, {U"revindex0", size - at - 1},
      {U"first", at == 0}, {U"last", at + 1 == size}, {U"length", size},        {U"depth", depth0 + 1},
      {U"depth0", depth0}};
  r.Step(0, 3 * std::size(members));  // a look into a table each, and what they are kept in
  Dict loop;
  for (const auto& [name, value] : members) loop.Set(name, value);
  if (at > 0) loop.Set(U"previtem", items[index - 1]);
  if (at + 1 < size) loop.Set(U"nextitem", items[index + 1]);
  return r.Make(std::move(loop));
}

// What is assigned to: a name, several, or a member of a namespace.
struct Target {
  std::vector<std::string> names;
  std::string member;

  void Set(Rendering& r, const Value& value) const {
    if (!member.empty()) {
      const Value* object = r.scope->Find(names[0]);
      if (object == nullptr || As<Dict*>(*object) == nullptr) Fail("only members of namespaces can be set");
      r.SetMember(**As<Dict*>(*object), member, value);
    } else if (names.size() == 1) {
      r.scope->names[names[0]] = value;
    } else {
      const ListPtr list = ToList(value, r);
      if (list->items.size() != names.size()) Fail(list->items.size(), " values for ", names.size(), " names");
      for (size_t i = 0; i < names.size(); ++i) r.scope->names[names[i]] = list->items[i];
    }
  }
};

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
    const auto ended = [this](std::string_view end) { return Is("{%") && Is(end, 1); };
    std::vector<Node> statements;
    while (now().kind != Token::Kind::kEnd && std::none_of(ends.begin(), ends.end(), ended)) {
      const Token& token = Next();
      if (token.kind == Token::Kind::kData) {
        statements.push_back(Output(Literal(token.place, token.text)));
      } else {
        const bool output = token.text == "{{";
        statements.push_back(output ? Output(Tuple()) : Statement(token.place));
        Expect(output ? "}}" : "%}");
      }
    }
    if (!Take("{%") && ends.size() > 0) FailHere(Cat("the template ends without ", *(ends.end() - 1)));
    return {place, [=](Rendering& r) -> Value {
              for (size_t i = 0; i < statements.size() && r.leaving == Leaving::kNothing; ++i) statements[i](r);
              return {};
            }};
  }

  static Node Output(const Node& value) {
    return {value.place(), [=](Rendering& r) -> Value {
              r.Write(ToText(value(r), r));
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

  // `| filter | filter %}body{% end`: what the body writes, filtered. `begins`: the first filter has no | before it.
  Node Captured(std::string_view end, bool begins = false) {
    const auto body = std::make_shared<Node>();  // is read after the filters, and runs before them
    const Node text(now().place, [body](Rendering& r) { return r.Capture(*body, r.scope); });
    Node filtered = Filters(begins ? BuiltIn(Builtin::kFilter, text) : text);
    *body = ClosedBodyUntil(end);
    return filtered;
  }

  Node Statement(size_t place) {
    const Nested nested(*this);
    const std::string tag = Name();
    if (tag == "if") return If(place);
    if (tag == "for") return For(place);
    if (tag == "set") return Set(place);
    if (tag == "macro") return Macro(place);
    if (tag == "generation") return Output(Captured("endgeneration"));
    if (tag == "filter") return Output(Captured("endfilter", /*begins=*/true));
    const Leaving leaving = tag == "break" ? Leaving::kLoop : tag == "continue" ? Leaving::kRound : Leaving::kNothing;
    if (leaving == Leaving::kNothing) {
      throw FailureAt(source_, place, Cat("the statement '", tag, "' is not known here"));
    }
    if (loops_ == 0) throw FailureAt(source_, place, Cat(tag, " outside a loop"));
    return {place, [=](Rendering& r) -> Value {
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
    const Target target = Targets();
    Expect("in");
    const Node list = Operation(), condition = Take("if") ? Expression() : Node();
    Expect("%}");
    ++loops_;
    const Node body = Body({"else", "endfor"});
    --loops_;
    const Node otherwise = Next().text == "else" ? BodyUntil("endfor") : Node();
    return {place, [=](Rendering& r) -> Value {
              ListPtr items = ToList(list(r), r);
              List those;
              for (size_t i = 0; condition && i < items->items.size(); ++i) {
                const InnerScope inner(r, r.scope);
                target.Set(r, items->items[i]);
                if (Truth(condition(r))) those.Add(items->items[i]);
              }
              if (condition) items = std::get<ListPtr>(r.Make(std::move(those)));
              for (size_t i = 0; i < items->items.size() && r.leaving != Leaving::kLoop; ++i) {
                const InnerScope inner(r, r.scope);
                r.scope->names["loop"] = LoopAt(items->items, i, r.scope->Find("loop"), r);
                target.Set(r, items->items[i]);
                body(r);
                if (r.leaving == Leaving::kRound) r.leaving = Leaving::kNothing;
              }
              r.leaving = Leaving::kNothing;
              const InnerScope inner(r, r.scope);
              return items->items.empty() && otherwise ? otherwise(r) : Value();
            }};
  }

  Target Targets() {
    Target target{{Name()}, ""};
    if (Take(".")) return target.member = Name(), target;
    while (Take(",")) target.names.push_back(Name());
    return target;
  }

  Node Set(size_t place) {
    const Target target = Targets();
    const Node value = Take("=") ? Tuple() : Captured("endset");
    return {place, [=](Rendering& r) -> Value {
              target.Set(r, value(r));
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
    return {place, [=](Rendering& r) -> Value {
              const Scope* scope = r.scope;
              if (scope->around != nullptr) Fail("a macro within a loop or macro is not known here");
              const auto run = [=](Call& c) {
                c.Bind(names, macro);
                const InnerScope inner(c.r, scope);
                for (size_t i = 0; i < names.size(); ++i) {
                  const Undefined* missing = As<Undefined>(c[i]);
                  const bool given = missing == nullptr || missing->name != nullptr;
                  const Value value = given ? c[i] : defaults[i] ? defaults[i](c.r) : Missing(names[i]);
                  c.r.scope->names[names[i]] = value;
                }
                return c.r.Capture(body, c.r.scope);
              };
              r.scope->names[macro] = std::make_shared<const Function>(Function{run});
              return {};
            }};
  }

  int loops_ = 0;  // that this place is in, and that may be left there
};

}  // namespace

absl::StatusOr<Template> Template::Parse(std::string_view source) try {
  if (source.size() > kMaxBytes) Fail(source.size(), " bytes are more than ", kMaxBytes);
  Template result;
  result.source_ = absl::StrReplaceAll(std::string(source), {{"\r\n", "\n"}, {"\r", "\n"}});
  if (!source.empty() && result.source_.back() == '\n') result.source_.pop_back();
  result.root_ = StatementParser(result.source_).Run();
  return result;
} catch (const Failure& failure) {
  return failure.status;
}

absl::StatusOr<Text> Template::Render(std::vector<std::pair<std::string, Value>> variables, absl::Time now,
                                      KeepGoing keep_going, const Limits& limits) const {
  Rendering rendering(now, keep_going, limits);
  Scope scope;
  rendering.scope = &scope;
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
