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
  int64_t steps = 10'000'000;           // a node run, an item or 128 characters handled
  size_t text = size_t{16} << 20;       // characters of any text, and of all that is written
  int64_t memory = int64_t{256} << 20;  // bytes of all values that live at one time, about
};

inline constexpr int kMaxValueDepth = 100;  // of lists and dicts in one another
inline constexpr size_t kSmall = 256;       // bytes of an object, about, with what it is allocated with

class Scope;

// A part of a template, ready to run: an expression, or a statement, which is Undefined. Immutable; copies share it.
class Node {
 public:
  Node() = default;
  Node(size_t place, std::function<Value(Rendering& r)> run)
      : place_(place), run_(std::make_shared<const decltype(run)>(std::move(run))) {}

  Value operator()(Rendering& r) const;
  explicit operator bool() const { return run_ != nullptr; }
  size_t place() const { return place_; }  // in the source

 private:
  size_t place_ = 0;
  std::shared_ptr<const std::function<Value(Rendering& r)>> run_;
};

// For one thread. All that goes beyond the limits fails.
class Rendering {
 public:
  // `keep_going` and what it refers to outlive it.
  Rendering(absl::Time now, KeepGoing keep_going, const Limits& limits)
      : now(now), keep_going_(keep_going), limits_(limits) {}

  void Step(size_t characters = 0, size_t items = 0);
  void FitText(size_t characters) const;
  // T: Text, List or Dict. Making it takes steps; its memory counts until it is gone, before the rendering is.
  template <typename T>
  Value Make(T value) {
    size_t bytes = kSmall;
    if constexpr (std::is_same_v<T, Text>) {
      FitText(value.size());
      Step(value.size());
      bytes += value.size() * sizeof(char32_t);
    } else {
      constexpr bool kList = std::is_same_v<T, List>;
      if (value.depth > kMaxValueDepth) Fail("lists and dicts are nested deeper than ", kMaxValueDepth);
      Step(0, value.items.size() * (kList ? 1 : 3));
      bytes += value.items.size() * (kList ? sizeof(Value) : kSmall);
    }
    Keep(bytes);
    return std::shared_ptr<const T>(new T(std::move(value)), [this, bytes](const T* gone) {
      memory_ -= static_cast<int64_t>(bytes);
      delete gone;
    });
  }
  Dict* MakeNamespace();  // which lives as long as the rendering
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

// Variables, and those around them; null: none. While it lives, it is the scope that the rendering sets them in.
class Scope {
 public:
  Scope(Rendering& r, const Scope* around) : around(around), r_(r), before_(std::exchange(r.scope, this)) {}
  ~Scope() { r_.scope = before_; }
  Scope(const Scope&) = delete;

  const Value* Find(const std::string& name) const;  // null: there is none

  const Scope* const around;
  absl::flat_hash_map<std::string, Value> names;

 private:
  Rendering& r_;
  Scope* const before_;
};

}  // namespace runahead::jinja
