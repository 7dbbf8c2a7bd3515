#include "server/tokenizer/jinja/evaluator.h"

#include <algorithm>
#include <utility>

namespace runahead::jinja {

Evaluator::Next Evaluator::Execute(const Node& node, Scope& scope) {
  if (depth_ >= kMaxDepth) r_.Fail("the template goes deeper than ", kMaxDepth, " levels");
  if (!r_.Step()) return Next::kBreak;
  ++depth_;
  const Next next = ExecuteAny(node, scope);
  --depth_;
  return r_.ok() ? next : Next::kBreak;
}

Evaluator::Next Evaluator::ExecuteAny(const Node& node, Scope& scope) {
  switch (node.kind) {
    case NodeKind::kBlock:
      return Block(node, scope);
    case NodeKind::kScope: {
      Scope inner{&scope, {}};
      return Execute(*node.parts[0], inner);
    }
    case NodeKind::kText:
      Write(*AsText(node.value));
      break;
    case NodeKind::kOutput: {
      const Value value = Evaluate(*node.parts[0], scope);
      r_.At(node.place);
      if (r_.ok()) Write(ToText(value, r_));
      break;
    }
    case NodeKind::kFor:
      For(node, scope);
      break;
    case NodeKind::kBranch:
      return Branch(node, scope);
    case NodeKind::kSet:
      Assign(*node.parts[0], Evaluate(*node.parts[1], scope), scope);
      break;
    case NodeKind::kSetBlock: {
      Value value = r_.Make(Captured(*node.parts[1], scope));
      if (node.parts[2] != nullptr) value = Evaluate(*node.parts[2], scope, &value);
      Assign(*node.parts[0], value, scope);
      break;
    }
    case NodeKind::kMacro:
      if (r_.Keep(Rendering::kSmall)) scope.names[node.text] = &macros_.emplace_back(Macro{&node, &scope});
      break;
    case NodeKind::kCallBlock:
      CallBlock(node, scope);
      break;
    case NodeKind::kFilterBlock: {
      const Value written = r_.Make(Captured(*node.parts[1], scope));
      const Value value = Evaluate(*node.parts[0], scope, &written);
      if (r_.ok()) Write(ToText(value, r_));
      break;
    }
    case NodeKind::kBreak:
      return Next::kBreak;
    default:
      return Next::kContinue;
  }
  return Next::kGoOn;
}

Evaluator::Next Evaluator::Block(const Node& node, Scope& scope) {
  for (const NodePtr& statement : node.parts) {
    const Next next = Execute(*statement, scope);
    if (next != Next::kGoOn) return next;
  }
  return Next::kGoOn;
}

Evaluator::Next Evaluator::Branch(const Node& node, Scope& scope) {
  size_t i = 0;
  for (; i + 1 < node.parts.size(); i += 2) {
    const bool taken = Truth(Evaluate(*node.parts[i], scope));
    if (!r_.ok()) return Next::kBreak;
    if (taken) return Execute(*node.parts[i + 1], scope);
  }
  return i < node.parts.size() ? Execute(*node.parts[i], scope) : Next::kGoOn;
}

void Evaluator::For(const Node& node, Scope& scope) {
  const Value list = Evaluate(*node.parts[1], scope);
  r_.At(node.place);
  ListPtr items = r_.ok() ? ToList(list, r_) : nullptr;
  if (node.parts[2] != nullptr && r_.ok()) {
    List kept;
    for (const Value& item : items->items) {
      Scope inner{&scope, {}};
      Assign(*node.parts[0], item, inner);
      if (Truth(Evaluate(*node.parts[2], inner))) kept.items.push_back(item);
      if (!r_.ok()) return;
    }
    const Value made = r_.Make(std::move(kept));
    if (r_.ok()) items = *As<ListPtr>(made);
  }
  if (!r_.ok()) return;
  if (!items->items.empty()) {
    ++loops_;
    Iterate(node, items, scope);
    --loops_;
  } else if (node.parts[4] != nullptr) {
    Scope inner{&scope, {}};
    Execute(*node.parts[4], inner);
  }
}

Evaluator::Next Evaluator::Iterate(const Node& node, const ListPtr& items, const Scope& around) {
  Scope inner{&around, {}};
  for (size_t i = 0; i < items->items.size(); ++i) {
    inner.names.clear();
    inner.names["loop"] = std::make_shared<const Loop>(Loop{items, i, loops_});
    Assign(*node.parts[0], items->items[i], inner);
    if (!r_.ok() || Execute(*node.parts[3], inner) == Next::kBreak) break;
  }
  return Next::kGoOn;
}

void Evaluator::CallBlock(const Node& node, Scope& scope) {
  if (!r_.Keep(Rendering::kSmall)) return;
  Macro& caller = macros_.emplace_back(Macro{node.parts[1].get(), &scope});
  const Value value = CallOf(*node.parts[0], scope, &caller);
  caller.scope = nullptr;
  if (r_.ok()) Write(ToText(value, r_));
}

void Evaluator::Assign(const Node& target, const Value& value, Scope& scope) {
  if (!r_.ok()) return;
  if (target.kind == NodeKind::kName) {
    scope.names[target.text] = value;
    return;
  }
  r_.At(target.place);
  if (target.kind == NodeKind::kMember) {
    const Value object = Evaluate(*target.parts[0], scope);
    Dict* const* space = As<Dict*>(object);
    if (space == nullptr) {
      r_.Fail("only members of namespaces can be set, and ", Describe(object));
    } else if (r_.Keep((*space)->index.contains(Cat("t", target.text)) ? 0 : Rendering::kSmall)) {
      (*space)->Set(std::make_shared<const Text>(target.text, /*own=*/true), value);
    }
    return;
  }
  const ListPtr items = ToList(value, r_);
  if (items->items.size() != target.parts.size()) {
    r_.Fail(items->items.size(), " values for ", target.parts.size(), " names");
    return;
  }
  for (size_t i = 0; i < target.parts.size(); ++i) Assign(*target.parts[i], items->items[i], scope);
}

void Evaluator::Write(const Text& text) {
  written_ += text.size();
  if (r_.Step(text.size()) && r_.FitsText(written_)) output_.Append(text);
}

Text Evaluator::Captured(const Node& body, const Scope& around) {
  Scope inner{&around, {}};
  Text before = std::exchange(output_, Text());
  Execute(body, inner);
  return std::exchange(output_, std::move(before));
}

Value Evaluator::Evaluate(const Node& node, const Scope& scope, const Value* input) {
  if (depth_ >= kMaxDepth) r_.Fail("the template goes deeper than ", kMaxDepth, " levels");
  if (!r_.Step()) return Undefined();
  ++depth_;
  Value value = EvaluateAny(node, scope, input);
  --depth_;
  return value;
}

Value Evaluator::EvaluateAny(const Node& node, const Scope& scope, const Value* input) {
  const auto part = [&](size_t i) { return Evaluate(*node.parts[i], scope); };
  switch (node.kind) {
    case NodeKind::kConst:
      return node.value;
    case NodeKind::kName:
      return Lookup(node, scope);
    case NodeKind::kList:
    case NodeKind::kTuple:
    case NodeKind::kDict:
      return Display(node, scope);
    case NodeKind::kMember: {
      const Value object = part(0);
      r_.At(node.place);
      return Member(object, node.text, r_);
    }
    case NodeKind::kItem: {
      const Value object = part(0), index = part(1);
      r_.At(node.place);
      return r_.ok() ? Item(object, index, r_) : Undefined();
    }
    case NodeKind::kSlice:
      return SliceOf(node, scope);
    case NodeKind::kCall:
      return CallOf(node, scope, nullptr);
    case NodeKind::kFilter:
    case NodeKind::kTest: {
      const bool filter = node.kind == NodeKind::kFilter;
      Value value = node.parts[0] == nullptr ? *input : Evaluate(*node.parts[0], scope, input);
      Arguments given = ArgumentsOf(node, 1, scope);
      r_.At(node.place);
      if (!r_.ok()) return Undefined();
      return ::runahead::jinja::Run(filter ? FindFilter(node.text) : FindTest(node.text), filter ? "filter" : "test",
                                    node.text, std::move(value), std::move(given), r_);
    }
    case NodeKind::kNot:
      return !Truth(part(0));
    case NodeKind::kUnary: {
      const Value operand = part(0);
      r_.At(node.place);
      return node.text == "-" ? Arithmetic("-", int64_t{0}, operand, r_) : Arithmetic("+", int64_t{0}, operand, r_);
    }
    case NodeKind::kAnd:
    case NodeKind::kOr: {
      Value left = part(0);
      return Truth(left) == (node.kind == NodeKind::kOr) ? left : part(1);
    }
    case NodeKind::kBinary:
      return Binary(node, scope);
    case NodeKind::kCompare:
      return Compare(node, scope);
    case NodeKind::kConcat:
      return Concat(node, scope);
    default:  // kIf
      if (Truth(part(0))) return part(1);
      return node.parts[2] == nullptr ? Undefined() : part(2);
  }
}

Value Evaluator::Lookup(const Node& node, const Scope& scope) {
  for (const Scope* s = &scope; s != nullptr; s = s->around) {
    const auto at = s->names.find(node.text);
    if (at != s->names.end()) return at->second;
  }
  if (FindFunction(node.text) != nullptr) return std::make_shared<const Function>(Function{node.text, Undefined()});
  return Undefined{std::make_shared<const std::string>(node.text)};
}

Value Evaluator::Display(const Node& node, const Scope& scope) {
  if (node.kind != NodeKind::kDict) {
    List list;
    list.tuple = node.kind == NodeKind::kTuple;
    for (const NodePtr& item : node.parts) list.items.push_back(Evaluate(*item, scope));
    return r_.Make(std::move(list));
  }
  Dict dict;
  for (size_t i = 0; i < node.parts.size() && r_.ok(); i += 2) {
    const Value key = Evaluate(*node.parts[i], scope);
    if (!r_.Step(AsText(key) == nullptr ? 0 : AsText(key)->size())) break;
    if (!dict.Set(key, Evaluate(*node.parts[i + 1], scope))) return r_.Fail("it cannot be a key: ", Describe(key));
  }
  return r_.Make(std::move(dict));
}

Value Evaluator::SliceOf(const Node& node, const Scope& scope) {
  const Value object = Evaluate(*node.parts[0], scope);
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (node.parts[i + 1] == nullptr) continue;
    const Value value = Evaluate(*node.parts[i + 1], scope);
    int64_t number = 0;
    if (ToInt(value, &number)) {
      bounds[i] = number;
    } else if (As<None>(value) == nullptr) {
      r_.At(node.place);
      return r_.Fail("a slice needs integers: ", Describe(value));
    }
  }
  r_.At(node.place);
  return Slice(object, bounds[0], bounds[1], bounds[2].value_or(1), r_);
}

Value Evaluator::Compare(const Node& node, const Scope& scope) {
  Value left = Evaluate(*node.parts[0], scope);
  for (size_t i = 1; i < node.parts.size() && r_.ok(); ++i) {
    const std::string& name = node.parts[i]->text;
    Value right = Evaluate(*node.parts[i]->parts[0], scope);
    r_.At(node.parts[i]->place);
    const bool holds = name == "=="       ? Equal(left, right, r_)
                       : name == "!="     ? !Equal(left, right, r_)
                       : name == "in"     ? Contains(right, left, r_)
                       : name == "not in" ? !Contains(right, left, r_)
                       : name == "<"      ? Less(left, right, r_)
                       : name == ">"      ? Less(right, left, r_)
                       : name == "<="     ? !Less(right, left, r_)
                                          : !Less(left, right, r_);
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::Concat(const Node& node, const Scope& scope) {
  Text joined;
  for (const NodePtr& part : node.parts) {
    const Value value = Evaluate(*part, scope);
    r_.At(node.place);
    if (!r_.ok()) return Undefined();
    joined.Append(ToText(value, r_));
    if (!r_.Step(joined.size()) || !r_.FitsText(joined.size())) return Undefined();
  }
  return r_.Make(std::move(joined));
}

Value Evaluator::Binary(const Node& node, const Scope& scope) {
  const Value left = Evaluate(*node.parts[0], scope), right = Evaluate(*node.parts[1], scope);
  r_.At(node.place);
  return r_.ok() ? Arithmetic(node.text, left, right, r_) : Undefined();
}

Arguments Evaluator::ArgumentsOf(const Node& node, size_t first, const Scope& scope) {
  Arguments given;
  for (size_t i = first; i < node.parts.size(); ++i) {
    const Node& part = *node.parts[i];
    if (part.kind == NodeKind::kArgument) {
      given.named.emplace_back(part.text, Evaluate(*part.parts[0], scope));
    } else {
      given.plain.push_back(Evaluate(part, scope));
    }
  }
  return given;
}

Value Evaluator::CallOf(const Node& node, const Scope& scope, const Macro* caller) {
  const Value callee = Evaluate(*node.parts[0], scope);
  Arguments given = ArgumentsOf(node, 1, scope);
  r_.At(node.place);
  if (!r_.ok()) return Undefined();
  if (const Macro* const* macro = As<const Macro*>(callee)) return CallMacro(**macro, std::move(given), caller);
  const std::shared_ptr<const Function>* function = As<std::shared_ptr<const Function>>(callee);
  if (function == nullptr) return r_.Fail("it cannot be called: ", Describe(callee));
  const Function& f = **function;
  const Builtin* builtin = f.method ? FindMethod(f.self, f.name) : FindFunction(f.name);
  return ::runahead::jinja::Run(builtin, f.method ? "method" : "function", f.name, f.self, std::move(given), r_);
}

Value Evaluator::CallMacro(const Macro& macro, Arguments given, const Macro* caller) {
  if (macro.scope == nullptr) return r_.Fail("the block that it calls has ended");
  const Node& node = *macro.node;
  const size_t count = node.parts.size() - 1;
  Scope scope{macro.scope, {}};
  if (caller != nullptr) scope.names["caller"] = caller;
  if (given.plain.size() > count) return r_.Fail("the macro '", node.text, "' takes at most ", count, " arguments");
  for (size_t i = 0; i < given.plain.size(); ++i) scope.names[node.parts[i]->text] = std::move(given.plain[i]);
  for (auto& [name, value] : given.named) {
    const auto is = [&, &called = name](const NodePtr& part) { return part->text == called; };
    const bool known = std::any_of(node.parts.begin(), node.parts.end() - 1, is);
    if (!known) return r_.Fail("the macro '", node.text, "' takes no argument '", name, "'");
    scope.names[name] = std::move(value);
  }
  for (size_t i = 0; i < count; ++i) {
    const Node& parameter = *node.parts[i];
    if (scope.names.contains(parameter.text)) continue;
    Value value = Undefined{std::make_shared<const std::string>(parameter.text)};
    if (parameter.parts[0] != nullptr) value = Evaluate(*parameter.parts[0], scope);
    scope.names[parameter.text] = std::move(value);
  }
  const int loops = std::exchange(loops_, 0);
  Value result = r_.Make(Captured(*node.parts[count], scope));
  loops_ = loops;
  return result;
}

}  // namespace runahead::jinja
