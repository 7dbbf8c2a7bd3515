#include "server/tokenizer/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/numbers.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/lexer.h"

namespace runahead::jinja {
namespace {

using Words = std::initializer_list<std::string_view>;

// The first error stays; what is left is skipped then, so that all ends soon.
class Parser {
 public:
  Parser(std::string_view source, std::vector<Token> tokens) : source_(source), tokens_(std::move(tokens)) {}

  absl::StatusOr<NodePtr> Run() {
    NodePtr body = Body({});
    if (status_.ok() && !unknown_.empty()) Fail(unknown_[0].first, unknown_[0].second);
    if (!status_.ok()) return status_;
    return body;
  }

 private:
  using Kind = Token::Kind;
  enum class Inline { kYes, kNo };  // whether `a if b else c` may stand here

  const Token& now() const { return tokens_[at_]; }
  bool Is(Kind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool IsWord(std::string_view text) const { return Is(Kind::kName, text); }
  bool IsSymbol(std::string_view text) const { return Is(Kind::kSymbol, text); }
  bool NextIs(Kind kind, std::string_view text) const {
    return at_ + 1 < tokens_.size() && tokens_[at_ + 1].kind == kind && tokens_[at_ + 1].text == text;
  }
  void Skip() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool Take(Kind kind, std::string_view text) {
    const bool is = Is(kind, text);
    if (is) Skip();
    return is;
  }
  bool TakeWord(std::string_view text) { return Take(Kind::kName, text); }
  bool TakeSymbol(std::string_view text) { return Take(Kind::kSymbol, text); }
  void Expect(Kind kind, std::string_view text, std::string_view shown) {
    if (!Take(kind, text)) Fail(now().place, Cat("expected ", shown));
  }
  void ExpectSymbol(std::string_view text) { Expect(Kind::kSymbol, text, text); }
  std::string Name() {
    const std::string name = now().text;
    if (now().kind != Kind::kName) Fail(now().place, "expected a name");
    Skip();
    return name;
  }

  void Fail(size_t place, std::string_view what) {
    if (status_.ok()) status_ = SyntaxError(source_, place, what);
    at_ = tokens_.size() - 1;
  }

  template <typename... Parts>
  NodePtr New(NodeKind kind, size_t place, std::string text = "", Parts... parts) {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->place = place;
    node->text = std::move(text);
    (Add(*node, std::move(parts)), ...);
    return node;
  }
  void Add(Node& node, NodePtr part) {
    if (part != nullptr) node.depth = std::max(node.depth, part->depth + 1);
    if (node.depth > kMaxNodeDepth) Fail(node.place, Cat("nested deeper than ", kMaxNodeDepth));
    node.parts.push_back(std::move(part));
  }
  NodePtr Const(size_t place, Value value) {
    NodePtr node = New(NodeKind::kConst, place);
    node->value = std::move(value);
    return node;
  }
  // A null node, and an error, where calls are nested too deep.
  template <typename F>
  NodePtr Nested(F parse) {
    if (nesting_ >= kMaxNodeDepth) Fail(now().place, Cat("nested deeper than ", kMaxNodeDepth));
    if (!status_.ok()) return New(NodeKind::kBreak, now().place);
    ++nesting_;
    NodePtr node = parse();
    --nesting_;
    return node;
  }

  // ---- Statements.

  // Up to a tag that begins with one of `ends`, which stays; without them up to the end of the template.
  NodePtr Body(Words ends) {
    NodePtr block = New(NodeKind::kBlock, now().place);
    while (now().kind != Kind::kEnd) {
      const Token token = now();
      Skip();
      if (token.kind == Kind::kData) {
        NodePtr text = New(NodeKind::kText, token.place);
        text->value = std::make_shared<const Text>(token.text, /*own=*/true);
        Add(*block, std::move(text));
      } else if (token.kind == Kind::kOutputBegin) {
        Add(*block, New(NodeKind::kOutput, token.place, "", Tuple()));
        Expect(Kind::kOutputEnd, "", "}}");
      } else {
        if (now().kind == Kind::kName && std::find(ends.begin(), ends.end(), now().text) != ends.end()) return block;
        Add(*block, Nested([&] { return Statement(token.place); }));
        Expect(Kind::kBlockEnd, "", "%}");
      }
    }
    if (ends.size() > 0) Fail(now().place, Cat("the template ends without ", *(ends.end() - 1)));
    return block;
  }

  // The body of a tag whose head was read, and its end: `{% tag %}body{% end`.
  NodePtr BodyUntil(std::string_view end) {
    Expect(Kind::kBlockEnd, "", "%}");
    NodePtr body = Body({end});
    Skip();
    return body;
  }

  // A body with variables of its own.
  NodePtr ScopeUntil(std::string_view end) {
    ++scopes_;
    NodePtr body = BodyUntil(end);
    --scopes_;
    return body;
  }

  NodePtr Statement(size_t place) {
    const std::string tag = now().text;
    if (now().kind != Kind::kName) return Fail(place, "expected the name of a statement"), nullptr;
    Skip();
    if (tag == "if") return Branch(place);
    if (tag == "for") return For(place);
    if (tag == "set") return Set(place);
    if (tag == "macro") return MacroDefinition(place);
    if (tag == "call") return CallBlock(place);
    if (tag == "filter") {
      NodePtr filters = Filters(nullptr, /*begins=*/true);
      return New(NodeKind::kFilterBlock, place, "", std::move(filters), ScopeUntil("endfilter"));
    }
    if (tag == "generation") return New(NodeKind::kScope, place, "", ScopeUntil("endgeneration"));
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) Fail(place, Cat(tag, " outside a loop"));
      return New(tag == "break" ? NodeKind::kBreak : NodeKind::kContinue, place);
    }
    Fail(place, Cat("the statement '", tag, "' is not known here"));
    return nullptr;
  }

  NodePtr Branch(size_t place) {
    const size_t unknown = unknown_.size();
    NodePtr branch = New(NodeKind::kBranch, place);
    Words ends = {"elif", "else", "endif"};
    std::string end = "elif";
    while (end == "elif") {
      Add(*branch, Tuple(Inline::kNo));
      Expect(Kind::kBlockEnd, "", "%}");
      Add(*branch, Body(ends));
      end = now().text;
      Skip();
    }
    if (end == "else") Add(*branch, BodyUntil("endif"));
    unknown_.resize(unknown);
    return branch;
  }

  NodePtr For(size_t place) {
    NodePtr target = Target();
    if (!TakeWord("in")) Fail(now().place, "expected 'in'");
    NodePtr list = Tuple(Inline::kNo);
    NodePtr condition = TakeWord("if") ? Expression() : nullptr;
    if (IsWord("recursive")) Fail(now().place, "recursive loops are not known here");
    Expect(Kind::kBlockEnd, "", "%}");
    ++scopes_, ++loops_;
    NodePtr body = Body({"else", "endfor"});
    --scopes_, --loops_;
    NodePtr otherwise;
    if (TakeWord("else")) {
      otherwise = ScopeUntil("endfor");
    } else {
      Skip();
    }
    return New(NodeKind::kFor, place, "", std::move(target), std::move(list), std::move(condition), std::move(body),
               std::move(otherwise));
  }

  // What is assigned to: a name, a member of a namespace, or several.
  NodePtr Target() {
    const size_t place = now().place;
    const auto one = [this] {
      const size_t begin = now().place;
      NodePtr name = New(NodeKind::kName, begin, Name());
      return TakeSymbol(".") ? New(NodeKind::kMember, begin, Name(), std::move(name)) : std::move(name);
    };
    const bool bracket = TakeSymbol("(");
    NodePtr target = one();
    if (IsSymbol(",")) {
      target = New(NodeKind::kTuple, place, "", std::move(target));
      while (TakeSymbol(",") && now().kind == Kind::kName && !IsWord("in")) Add(*target, one());
    }
    if (bracket) ExpectSymbol(")");
    return target;
  }

  NodePtr Set(size_t place) {
    NodePtr target = Target();
    if (TakeSymbol("=")) return New(NodeKind::kSet, place, "", std::move(target), Tuple());
    NodePtr filters = IsSymbol("|") ? Filters(nullptr, /*begins=*/false) : nullptr;
    NodePtr body = ScopeUntil("endset");
    return New(NodeKind::kSetBlock, place, "", std::move(target), std::move(body), std::move(filters));
  }

  void Parameters(Node& macro) {
    ExpectSymbol("(");
    while (status_.ok() && !IsSymbol(")")) {
      NodePtr parameter = New(NodeKind::kArgument, now().place, Name());
      Add(*parameter, TakeSymbol("=") ? Expression() : nullptr);
      Add(macro, std::move(parameter));
      if (!IsSymbol(")")) ExpectSymbol(",");
    }
    ExpectSymbol(")");
  }

  NodePtr MacroDefinition(size_t place) {
    if (scopes_ > 0) Fail(place, "a macro within a loop, macro or block with a scope of its own is not known here");
    NodePtr macro = New(NodeKind::kMacro, place, Name());
    Parameters(*macro);
    Add(*macro, MacroBody("endmacro"));
    return macro;
  }

  NodePtr MacroBody(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    NodePtr body = ScopeUntil(end);
    loops_ = loops;
    return body;
  }

  NodePtr CallBlock(size_t place) {
    NodePtr caller = New(NodeKind::kMacro, place, "caller");
    if (IsSymbol("(")) Parameters(*caller);
    NodePtr call = Expression();
    if (status_.ok() && call->kind != NodeKind::kCall) Fail(place, "expected a call");
    Add(*caller, MacroBody("endcall"));
    return New(NodeKind::kCallBlock, place, "", std::move(call), std::move(caller));
  }

  // ---- Expressions.

  // Maybe several with commas between them.
  NodePtr Tuple(Inline conditions = Inline::kYes) {
    const auto one = [&] { return conditions == Inline::kYes ? Expression() : Nested([this] { return Chain(0); }); };
    const size_t place = now().place;
    NodePtr first = one();
    if (!IsSymbol(",")) return first;
    NodePtr tuple = New(NodeKind::kTuple, place, "", std::move(first));
    while (TakeSymbol(",") && !IsSymbol(")") && now().kind != Kind::kBlockEnd && now().kind != Kind::kOutputEnd) {
      Add(*tuple, one());
    }
    return tuple;
  }

  NodePtr Expression() {
    return Nested([this] {
      const size_t place = now().place, unknown = unknown_.size();
      NodePtr value = Chain(0);
      while (TakeWord("if")) {
        NodePtr condition = Chain(0);
        NodePtr otherwise = TakeWord("else") ? Expression() : nullptr;
        value = New(NodeKind::kIf, place, "", std::move(condition), std::move(value), std::move(otherwise));
        unknown_.resize(unknown);
      }
      return value;
    });
  }

  // What binds operators of one level and stronger ones: or; and; not and comparisons; + -; ~; * / // %; **.
  NodePtr Chain(int level) {
    constexpr int kNot = 2, kConcat = 4, kUnary = 7;
    if (level == kNot) return Compare();
    if (level == kUnary) return Unary(/*filters=*/true);
    static const std::vector<std::string_view> operators[] = {
        {"or"}, {"and"}, {}, {"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    NodePtr left = Chain(level + 1);
    while (status_.ok()) {
      const size_t place = now().place;
      const auto is = [&](std::string_view o) { return level < kNot ? IsWord(o) : IsSymbol(o); };
      const auto found = std::find_if(operators[level].begin(), operators[level].end(), is);
      if (found == operators[level].end()) break;
      Skip();
      NodePtr right = Chain(level + 1);
      if (level == kConcat && left->kind == NodeKind::kConcat) {
        Add(*left, std::move(right));
        continue;
      }
      const NodeKind kind = level == 0         ? NodeKind::kOr
                            : level == 1       ? NodeKind::kAnd
                            : level == kConcat ? NodeKind::kConcat
                                               : NodeKind::kBinary;
      left = New(kind, place, std::string(*found), std::move(left), std::move(right));
    }
    return left;
  }

  NodePtr Compare() {
    const size_t place = now().place;
    if (TakeWord("not")) {
      return New(NodeKind::kNot, place, "", Nested([this] { return Compare(); }));
    }
    NodePtr first = Chain(3);
    NodePtr compare;
    while (status_.ok()) {
      const size_t begin = now().place;
      std::string name;
      for (const std::string_view symbol : {"==", "!=", "<", "<=", ">", ">="}) {
        if (IsSymbol(symbol)) name = symbol;
      }
      if (IsWord("in")) name = "in";
      if (IsWord("not") && NextIs(Kind::kName, "in")) name = "not in";
      if (name.empty()) break;
      if (name == "not in") Skip();
      Skip();
      if (compare == nullptr) compare = New(NodeKind::kCompare, begin, "", std::move(first));
      Add(*compare, New(NodeKind::kArgument, begin, name, Chain(3)));
    }
    return compare == nullptr ? std::move(first) : std::move(compare);
  }

  NodePtr Unary(bool filters) {
    return Nested([&] {
      const Token token = now();
      NodePtr node;
      if (TakeSymbol("-") || TakeSymbol("+")) {
        node = New(NodeKind::kUnary, token.place, token.text, Unary(/*filters=*/false));
      } else {
        node = Primary();
      }
      node = Postfix(std::move(node));
      while (filters && status_.ok()) {
        if (IsSymbol("|")) {
          node = Filters(std::move(node), /*begins=*/false);
        } else if (IsWord("is")) {
          node = Test(std::move(node));
        } else if (IsSymbol("(")) {
          node = Call(std::move(node));
        } else {
          break;
        }
      }
      return node;
    });
  }

  NodePtr Primary() {
    const Token token = now();
    Skip();
    switch (token.kind) {
      case Kind::kName:
        if (token.text == "true" || token.text == "True") return Const(token.place, true);
        if (token.text == "false" || token.text == "False") return Const(token.place, false);
        if (token.text == "none" || token.text == "None") return Const(token.place, None());
        return New(NodeKind::kName, token.place, token.text);
      case Kind::kString: {
        std::string text = token.text;
        for (; now().kind == Kind::kString; Skip()) text += now().text;
        return Const(token.place, std::make_shared<const Text>(text, /*own=*/true));
      }
      case Kind::kInteger: {
        int64_t number = 0;
        if (!absl::SimpleAtoi(token.text, &number)) Fail(token.place, "the number is too large");
        return Const(token.place, number);
      }
      case Kind::kFloat: {
        double number = 0;
        if (!absl::SimpleAtod(token.text, &number)) Fail(token.place, "this is no number");
        return Const(token.place, number);
      }
      default:
        break;
    }
    if (token.kind == Kind::kSymbol && token.text == "(") {
      NodePtr inner = IsSymbol(")") ? New(NodeKind::kTuple, token.place) : Tuple();
      ExpectSymbol(")");
      return inner;
    }
    if (token.kind == Kind::kSymbol && (token.text == "[" || token.text == "{")) return Display(token);
    Fail(token.place, "expected an expression");
    return New(NodeKind::kBreak, token.place);
  }

  // A list or dict, written out.
  NodePtr Display(const Token& token) {
    const bool dict = token.text == "{";
    const std::string_view end = dict ? "}" : "]";
    NodePtr node = New(dict ? NodeKind::kDict : NodeKind::kList, token.place);
    while (status_.ok() && !IsSymbol(end)) {
      Add(*node, Expression());
      if (dict) {
        ExpectSymbol(":");
        Add(*node, Expression());
      }
      if (!IsSymbol(end)) ExpectSymbol(",");
    }
    ExpectSymbol(end);
    return node;
  }

  NodePtr Postfix(NodePtr node) {
    while (status_.ok()) {
      const size_t place = node->place;
      if (TakeSymbol(".")) {
        int64_t index = 0;
        if (now().kind == Kind::kInteger && absl::SimpleAtoi(now().text, &index)) {
          Skip();
          node = New(NodeKind::kItem, place, "", std::move(node), Const(place, index));
        } else {
          node = New(NodeKind::kMember, place, Name(), std::move(node));
        }
      } else if (TakeSymbol("[")) {
        node = Subscript(std::move(node), place);
      } else if (IsSymbol("(")) {
        node = Call(std::move(node));
      } else {
        break;
      }
    }
    return node;
  }

  NodePtr Subscript(NodePtr object, size_t place) {
    NodePtr parts[3];
    int count = 0;
    bool slice = false;
    for (; count < 3 && status_.ok(); ++count) {
      if (!IsSymbol(":") && !IsSymbol("]")) parts[count] = Expression();
      if (!TakeSymbol(":")) break;
      slice = true;
    }
    ExpectSymbol("]");
    if (!slice && parts[0] == nullptr) Fail(place, "expected an index");
    if (!slice) return New(NodeKind::kItem, place, "", std::move(object), std::move(parts[0]));
    return New(NodeKind::kSlice, place, "", std::move(object), std::move(parts[0]), std::move(parts[1]),
               std::move(parts[2]));
  }

  void Arguments(Node& node) {
    ExpectSymbol("(");
    bool named = false;
    while (status_.ok() && !IsSymbol(")")) {
      const size_t place = now().place;
      if (IsSymbol("*") || IsSymbol("**")) Fail(place, "* and ** of arguments are not known here");
      if (now().kind == Kind::kName && NextIs(Kind::kSymbol, "=")) {
        named = true;
        std::string name = Name();
        Skip();
        Add(node, New(NodeKind::kArgument, place, std::move(name), Expression()));
      } else {
        if (named) Fail(place, "an argument without a name follows one that has one");
        Add(node, Expression());
      }
      if (!IsSymbol(")")) ExpectSymbol(",");
    }
    ExpectSymbol(")");
  }

  NodePtr Call(NodePtr callee) {
    const size_t place = callee->place;
    NodePtr call = New(NodeKind::kCall, place, "", std::move(callee));
    Arguments(*call);
    return call;
  }

  // `begins`: the first one has no | before it.
  NodePtr Filters(NodePtr input, bool begins) {
    while (status_.ok() && (begins || TakeSymbol("|"))) {
      begins = false;
      const size_t place = now().place;
      input = New(NodeKind::kFilter, place, Name(), std::move(input));
      if (!HasFilter(input->text))
        unknown_.emplace_back(place, Cat("the filter '", input->text, "' is not known here"));
      if (IsSymbol("(")) Arguments(*input);
    }
    return input;
  }

  NodePtr Test(NodePtr input) {
    Skip();
    const bool negated = TakeWord("not");
    const size_t place = now().place;
    NodePtr test = New(NodeKind::kTest, place, Name(), std::move(input));
    if (!HasTest(test->text)) unknown_.emplace_back(place, Cat("the test '", test->text, "' is not known here"));
    const Kind kind = now().kind;
    const bool word = kind == Kind::kName && !IsWord("else") && !IsWord("or") && !IsWord("and") && !IsWord("is") &&
                      !IsWord("if") && !IsWord("in") && !IsWord("not");
    if (IsSymbol("(")) {
      Arguments(*test);
    } else if (word || kind == Kind::kString || kind == Kind::kInteger || kind == Kind::kFloat || IsSymbol("[") ||
               IsSymbol("{")) {
      Add(*test, Postfix(Primary()));
    }
    return negated ? New(NodeKind::kNot, place, "", std::move(test)) : std::move(test);
  }

  const std::string_view source_;
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  absl::Status status_;
  int nesting_ = 0;
  int scopes_ = 0;  // that this place is in
  int loops_ = 0;
  // Filters and tests that are not there, with their places: an error unless a condition may keep them from being used.
  std::vector<std::pair<size_t, std::string>> unknown_;
};

}  // namespace

absl::StatusOr<NodePtr> ParseTemplate(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(Cat(source.size(), " bytes are more than ", kMaxTemplateBytes));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(source));
  return Parser(source, std::move(tokens)).Run();
}

}  // namespace runahead::jinja
