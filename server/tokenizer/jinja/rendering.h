// What a rendering of a template uses up, and where it is.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

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

  const Value* Find(const std::string& name) const;  // null: there is none
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
  // `keep_going` and what it refers to outlive it.
  Rendering(absl::Time now, KeepGoing keep_going, const Limits& limits)
      : now(now), keep_going_(keep_going), limits_(limits) {}

  void Step(size_t characters = 0, size_t items = 0);
  void FitText(size_t characters) const;
  // T: Text, List or Dict. Its memory counts until it is gone, which is before the rendering is.
  template <typename T>
  Value Make(T value);
  Dict* MakeNamespace(Dict dict);
  void SetMember(Dict& space, const std::string& name, Value value);
  void Write(const Text& text);
  // What `node` writes, with variables of its own, and those of `around`.
  Value Capture(const Node& node, const Scope* around);

  const absl::Time now;
  Scope* scope = nullptr;
  enum class Leaving { kNothing, kRound, kLoop } leaving = Leaving::kNothing;  // by continue and break
  Text output;
  size_t place = 0;  // of the node that runs

 private:
  friend class Node;
  void Keep(size_t bytes);

  const KeepGoing keep_going_;
  const Limits limits_;
  int64_t steps_ = 0, memory_ = 0;
  size_t written_ = 0;
  int depth_ = 0;
  std::deque<Dict> namespaces_;  // whose values count in memory_
};

// While it lives, variables are set in a scope of their own.
class InnerScope {
 public:
  InnerScope(Rendering& r, const Scope* around);
  ~InnerScope() { r_.scope = outer_; }
  InnerScope(const InnerScope&) = delete;

 private:
  Rendering& r_;
  Scope* const outer_;
  Scope scope_;
};

}  // namespace runahead::jinja
