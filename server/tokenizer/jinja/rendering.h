// What a rendering of a template uses up, and where it is.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/tokenizer/jinja/value.h"
#include "server/tokenizer/keep_going.h"

namespace runahead::jinja {

struct Limits {
  int64_t steps = 10'000'000;           // a node run, an item or 256 characters handled
  size_t text = size_t{16} << 20;       // characters of any text, and of all that is written
  int64_t memory = int64_t{256} << 20;  // bytes of all values that live at one time, about
};

// Variables, and those around them; null: none.
struct Scope {
  const Scope* around = nullptr;
  absl::flat_hash_map<std::string, Value> names = {};

  // Null where there is none.
  const Value* Find(const std::string& name) const;
};

// A part of a template, ready to run: an expression, or a statement, which is Undefined. Immutable; copies share it.
class Node {
 public:
  Node() = default;
  Node(size_t place, std::function<Value(Rendering& r)> run)
      : code_(std::make_shared<const Code>(Code{place, std::move(run)})) {}

  Value operator()(Rendering& r) const;
  explicit operator bool() const { return code_ != nullptr; }
  size_t place() const { return code_->place; }  // in the source

 private:
  struct Code {
    size_t place;
    std::function<Value(Rendering& r)> run;
  };
  std::shared_ptr<const Code> code_;
};

// For one thread. All that goes beyond the limits fails.
class Rendering {
 public:
  // `scope`, `keep_going` and what they refer to outlive it.
  Rendering(Scope* scope, absl::Time now, KeepGoing keep_going, const Limits& limits)
      : scope(scope), now(now), keep_going_(keep_going), limits_(limits) {}
  Rendering(const Rendering&) = delete;
  Rendering& operator=(const Rendering&) = delete;

  void Step(size_t characters = 0, size_t items = 0);
  void FitText(size_t characters) const;

  // The memory of values counts until they are gone, which is before the rendering is.
  template <typename T>
  Value Make(T value);  // Text, List, Dict
  Value Make(std::vector<Value> items);
  Dict* MakeNamespace(Dict dict);
  void Set(Dict& space, const std::string& name, Value value);

  void Write(const Text& text);
  // What `node` writes, with variables of its own.
  Value Capture(const Node& node);

  enum class Leaving { kNothing, kRound, kLoop };

  Scope* scope;
  Leaving leaving = Leaving::kNothing;  // by continue and break
  Text output;
  size_t place = 0;  // of the node that runs
  const absl::Time now;

 private:
  friend class Node;
  void Keep(size_t bytes);

  const KeepGoing keep_going_;
  const Limits limits_;
  int64_t steps_ = 0;
  int64_t memory_ = 0;
  size_t written_ = 0;
  int depth_ = 0;
  std::deque<Dict> namespaces_;  // whose values count in memory_
};

// While it lives, variables are set in a scope of their own.
class InnerScope {
 public:
  explicit InnerScope(Rendering& r) : InnerScope(r, r.scope) {}
  InnerScope(Rendering& r, const Scope* around);
  ~InnerScope() { r_.scope = outer_; }
  InnerScope(const InnerScope&) = delete;
  InnerScope& operator=(const InnerScope&) = delete;

 private:
  Rendering& r_;
  Scope* const outer_;
  Scope scope_;
};

}  // namespace runahead::jinja
