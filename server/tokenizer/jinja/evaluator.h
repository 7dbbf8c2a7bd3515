// Goes over the tree of a template.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/parser.h"
#include "server/tokenizer/jinja/value.h"

namespace runahead::jinja {

// Variables, and the scope around them; null: none.
struct Scope {
  const Scope* around = nullptr;
  absl::flat_hash_map<std::string, Value> names;
};

struct Macro {
  const Node* node;
  const Scope* scope;  // that it was defined in; null once that is gone
};

// For one rendering. What fails is in `r` (Rendering): from then on everything returns at once.
class Evaluator {
 public:
  explicit Evaluator(Rendering& r) : r_(r) {}

  // Renders into output().
  void Run(const Node& root, Scope& scope) { Execute(root, scope); }
  Text& output() { return output_; }

 private:
  // Calls in one another, of a nested construct each; a level needs some hundred bytes of stack.
  static constexpr int kMaxDepth = 1000;

  enum class Next { kGoOn, kBreak, kContinue };

  // Statements.
  Next Execute(const Node& node, Scope& scope);
  Next ExecuteAny(const Node& node, Scope& scope);
  Next Block(const Node& node, Scope& scope);
  Next Branch(const Node& node, Scope& scope);
  void For(const Node& node, Scope& scope);
  Next Iterate(const Node& node, const ListPtr& items, const Scope& around);
  void CallBlock(const Node& node, Scope& scope);
  void Assign(const Node& target, const Value& value, Scope& scope);
  void Write(const Text& text);
  // What `body` writes.
  Text Captured(const Node& body, const Scope& around);

  // Expressions. `input`: of a block's filters, what it has written.
  Value Evaluate(const Node& node, const Scope& scope, const Value* input = nullptr);
  Value EvaluateAny(const Node& node, const Scope& scope, const Value* input);
  Value Lookup(const Node& node, const Scope& scope);
  Value Display(const Node& node, const Scope& scope);
  Value SliceOf(const Node& node, const Scope& scope);
  Value Compare(const Node& node, const Scope& scope);
  Value Concat(const Node& node, const Scope& scope);
  Value Binary(const Node& node, const Scope& scope);
  Value CallOf(const Node& node, const Scope& scope, const Macro* caller);
  Value CallMacro(const Macro& macro, Arguments given, const Macro* caller);
  // The node's parts from `first` on.
  Arguments ArgumentsOf(const Node& node, size_t first, const Scope& scope);

  Rendering& r_;
  Text output_;
  size_t written_ = 0;  // by all blocks
  int depth_ = 0;
  int loops_ = 0;
  std::deque<Macro> macros_;
};

// a + b and the like; `name` is the operator.
Value Arithmetic(std::string_view name, const Value& a, const Value& b, Rendering& r);

}  // namespace runahead::jinja
