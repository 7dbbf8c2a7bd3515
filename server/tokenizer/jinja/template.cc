// Statements: how they are written, and what each of them does when it runs; and templates as a whole.
#include "server/tokenizer/jinja/template.h"

#include <algorithm>
#include <initializer_list>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/tokenizer/jinja/parser.h"

namespace runahead::jinja {
namespace {

constexpr size_t kMaxBytes = size_t{512} << 10;

using Leaving = Rendering::Leaving;

// What `loop` is.
Value LoopAt(const std::vector<Value>& items, size_t index, Rendering& r) {
  const auto at = static_cast<int64_t>(index), size = static_cast<int64_t>(items.size());
  const std::pair<const char32_t*, Value> members[] = {
      {U"index", at + 1},  {U"index0", at},           {U"revindex", size - at}, {U"revindex0", size - at - 1},
      {U"first", at == 0}, {U"last", at + 1 == size}, {U"length", size}};
  Dict loop;
  for (const auto& [name, value] : members) loop.Set(name, value);
  if (at > 0) loop.Set(U"previtem", items[index - 1]);
  if (at + 1 < size) loop.Set(U"nextitem", items[index + 1]);
  return r.Make(std::move(loop));
}

// Assigns a value.
using Target = std::function<void(Rendering& r, const Value& value)>;

// A node of no value.
template <typename F>
Node Statement(size_t place, F run) {
  return {place, [=](Rendering& r) -> Value {
            run(r);
            return {};
          }};
}

Node Output(const Node& value) {
  return Statement(value.place(), [=](Rendering& r) { r.Write(ToText(value(r), r)); });
}

class StatementParser {
 public:
  // `source` outlives it.
  explicit StatementParser(Lexer& source) : source_(source) {}

  // Up to a tag of one of the names in `ends`, which is read; without them up to the end of the template.
  Node Body(std::initializer_list<const char*> ends) {
    const size_t begin = source_.place();
    std::vector<Node> statements;
    std::string_view text;
    for (char kind = ' '; kind != '\0';) {
      const size_t place = source_.place();
      std::tie(text, kind) = source_.TextAndTag();
      if (!text.empty()) statements.push_back(Output(Literal(place, text)));
      if (kind == '{') {
        statements.push_back(Output(Tuple(source_)));
        source_.End("}}");
      } else if (kind == '%') {
        const size_t tag = source_.tag();
        ended_ = source_.Name();
        if (std::find(ends.begin(), ends.end(), ended_) != ends.end()) break;
        statements.push_back(Tag(tag, ended_));
        source_.End("%}");
      } else if (kind == '\0' && ends.size() > 0) {
        source_.FailAt(source_.place(), absl::StrCat("the template ends without ", *(ends.end() - 1)));
      }
    }
    return Statement(begin, [=](Rendering& r) {
      for (size_t i = 0; i < statements.size() && r.leaving == Leaving::kNothing; ++i) statements[i](r);
    });
  }

 private:
  // What follows a tag's head: `%}body{% end`. In it `loops` of those around it can be left.
  Node BodyUntil(const char* end, int loops) {
    source_.End("%}");
    const int outer = std::exchange(loops_, loops);
    Node body = Body({end});
    loops_ = outer;
    return body;
  }

  // `| filter | filter %}body{% end`: what the body writes, filtered. `begins`: the first filter has no | before it.
  Node Captured(const char* end, bool begins = false) {
    const auto body = std::make_shared<Node>();  // is read after the filters, and runs before them
    const Node text(source_.place(), [body](Rendering& r) { return r.Capture(*body, r.scope); });
    Node filtered = Filters(source_, begins ? FilterOrTest(source_, Builtin::kFilter, text) : text);
    *body = BodyUntil(end, /*loops=*/0);
    return filtered;
  }

  Node Tag(size_t place, std::string tag) {
    const auto nested = source_.Nested();
    if (tag == "if") return If(place);
    if (tag == "for") return For(place);
    if (tag == "set") return Set(place);
    if (tag == "macro") return Macro(place);
    if (tag == "generation") return Output(Captured("endgeneration"));
    if (tag == "filter") return Output(Captured("endfilter", /*begins=*/true));
    const bool leaves = tag == "break" || tag == "continue";
    if (!leaves) source_.FailAt(place, absl::StrCat("the statement '", tag, "' is not known here"));
    if (loops_ == 0) source_.FailAt(place, absl::StrCat(tag, " outside a loop"));
    return Statement(
        place, [leaving = tag == "break" ? Leaving::kLoop : Leaving::kRound](Rendering& r) { r.leaving = leaving; });
  }

  Node If(size_t place) {
    const size_t unknown = source_.unknown.size();
    std::vector<std::pair<Node, Node>> branches;
    do {
      const Node condition = Expression(source_);
      source_.End("%}");
      branches.emplace_back(condition, Body({"elif", "else", "endif"}));
    } while (ended_ == "elif");
    const Node otherwise = ended_ == "else" ? BodyUntil("endif", loops_) : Node();
    source_.unknown.resize(unknown);
    return {place, [=](Rendering& r) -> Value {
              for (const auto& [condition, body] : branches) {
                if (Truth(condition(r))) return body(r);
              }
              return otherwise ? otherwise(r) : Value();
            }};
  }

  Node For(size_t place) {
    const Target assign = Targets();
    source_.Expect("in");
    const Node list = Operation(source_), condition = source_.Take("if") ? Expression(source_) : Node();
    source_.End("%}");
    ++loops_;
    const Node body = Body({"else", "endfor"});
    --loops_;
    const Node otherwise = ended_ == "else" ? BodyUntil("endfor", loops_) : Node();
    return Statement(place, [=](Rendering& r) {
      ListPtr items = ToList(list(r), r);
      std::vector<Value> those;
      for (size_t i = 0; condition && i < items->items.size(); ++i) {
        const Scope inner(r, r.scope);
        assign(r, items->items[i]);
        if (Truth(condition(r))) those.push_back(items->items[i]);
      }
      if (condition) items = std::get<ListPtr>(r.Make(List(std::move(those))));
      for (size_t i = 0; i < items->items.size() && r.leaving != Leaving::kLoop; ++i) {
        const Scope inner(r, r.scope);
        r.scope->names["loop"] = LoopAt(items->items, i, r);
        assign(r, items->items[i]);
        body(r);
        if (r.leaving == Leaving::kRound) r.leaving = Leaving::kNothing;
      }
      r.leaving = Leaving::kNothing;
      const Scope inner(r, r.scope);
      if (items->items.empty() && otherwise) otherwise(r);
    });
  }

  // A member of a namespace, a name, or several.
  Target Targets() {
    std::vector<std::string> names = {source_.Name()};
    if (source_.Take(".")) {
      return [name = names[0], member = source_.Name()](Rendering& r, const Value& value) {
        const Value* object = r.scope->Find(name);
        if (object == nullptr || As<Dict*>(*object) == nullptr) Fail("only members of namespaces can be set");
        r.SetMember(**As<Dict*>(*object), member, value);
      };
    }
    while (source_.Take(",")) names.push_back(source_.Name());
    if (names.size() == 1) return [name = names[0]](Rendering& r, const Value& value) { r.scope->names[name] = value; };
    return [names](Rendering& r, const Value& value) {
      const ListPtr list = ToList(value, r);
      if (list->items.size() != names.size()) Fail(list->items.size(), " values for ", names.size(), " names");
      for (size_t i = 0; i < names.size(); ++i) r.scope->names[names[i]] = list->items[i];
    };
  }

  Node Set(size_t place) {
    const Target assign = Targets();
    const Node value = source_.Take("=") ? Tuple(source_) : Captured("endset");
    return Statement(place, [=](Rendering& r) { assign(r, value(r)); });
  }

  Node Macro(size_t place) {
    const std::string macro = source_.Name();
    std::vector<std::string> names;
    std::vector<Node> defaults;
    source_.Expect("(");
    source_.Items(")", [&] {
      names.push_back(source_.Name());
      defaults.push_back(source_.Take("=") ? Expression(source_) : Node());
    });
    const Node body = BodyUntil("endmacro", /*loops=*/0);
    return Statement(place, [=](Rendering& r) {
      const Scope* scope = r.scope;
      if (scope->around != nullptr) Fail("a macro within a loop or macro is not known here");
      const auto run = [=](Call& c) {
        c.Bind(names, macro);
        const Scope inner(c.r, scope);
        for (size_t i = 0; i < names.size(); ++i) {
          const Undefined* missing = As<Undefined>(c[i]);
          const bool given = missing == nullptr || missing->name != nullptr;
          const Value value = given ? c[i] : defaults[i] ? defaults[i](c.r) : Missing(names[i]);
          c.r.scope->names[names[i]] = value;
        }
        return c.r.Capture(body, c.r.scope);
      };
      r.scope->names[macro] = std::make_shared<const Function>(Function{run});
    });
  }

  Lexer& source_;
  std::string ended_;  // the name of the tag that ended the last body
  int loops_ = 0;      // that this place is in, and that may be left there
};

}  // namespace

absl::StatusOr<Template> Template::Parse(std::string_view source) try {
  if (source.size() > kMaxBytes) Fail(source.size(), " bytes are more than ", kMaxBytes);
  Template result;
  result.source_ = absl::StrReplaceAll(std::string(source), {{"\r\n", "\n"}, {"\r", "\n"}});
  if (!source.empty() && result.source_.back() == '\n') result.source_.pop_back();
  Lexer lexer(result.source_);
  result.root_ = StatementParser(lexer).Body({});
  if (!lexer.unknown.empty()) lexer.FailAt(lexer.unknown[0].first, lexer.unknown[0].second);
  return result;
} catch (const Failure& failure) {
  return failure.status;
}

absl::StatusOr<Text> Template::Render(std::vector<std::pair<std::string, Value>> variables, absl::Time now,
                                      KeepGoing keep_going, const Limits& limits) const {
  Rendering rendering(now, keep_going, limits);
  Scope scope(rendering, /*around=*/nullptr);
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
