// What a template computes with, and what one rendering may use up.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/tokenizer/jinja/text.h"
#include "server/tokenizer/keep_going.h"

namespace runahead::jinja {

struct List;
struct Dict;
struct Loop;
struct Function;
struct Macro;  // the evaluator's
struct None {};
struct Undefined {
  std::shared_ptr<const std::string> name;  // what was looked for; null: nobody knows
};

using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
// Immutable, but for namespaces (Dict*), which the evaluator owns, as it does macros: so there are no cycles to free.
using Value = std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, Dict*,
                           std::shared_ptr<const Loop>, std::shared_ptr<const Function>, const Macro*>;

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;  // of lists and dicts in it
};

// In the order of insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  absl::flat_hash_map<std::string, size_t> index;
  int depth = 1;

  // Replaces the value of a key that is there. False for a key that cannot be one: it is no text, number or none.
  bool Set(const Value& key, Value value);
  const Value* Get(const Value& key) const;
  const Value* Get(std::string_view key) const;
};

// Where a loop is.
struct Loop {
  ListPtr items;
  size_t index = 0;
  int depth = 1;  // of loops, this one included
};

// A function or filter that is there by itself, or a method of `self`.
struct Function {
  std::string name;
  Value self;
  bool method = false;
};

// What one rendering may use.
struct Limits {
  int64_t steps = 10'000'000;           // a node evaluated, an item or 256 bytes handled
  size_t text = size_t{64} << 20;       // bytes of any text, and of all that is written
  int64_t memory = int64_t{256} << 20;  // bytes of all values that live at one time, about
};

// One rendering: its limits and its first error, after which everything returns at once and what it returns is not
// looked at. For one thread.
class Rendering {
 public:
  static constexpr int kMaxDepth = 100;  // of lists and dicts in one another
  static constexpr size_t kSmall = 256;  // bytes of an object that the evaluator keeps

  // `source`, `keep_going` and what it refers to outlive it.
  Rendering(std::string_view source, absl::Time now, KeepGoing keep_going, const Limits& limits)
      : source_(source), now_(now), keep_going_(keep_going), limits_(limits) {}
  ~Rendering() = default;
  Rendering(const Rendering&) = delete;
  Rendering& operator=(const Rendering&) = delete;

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  absl::Time now() const { return now_; }

  // What is evaluated now: its place in the source, for errors.
  void At(size_t place) { place_ = place; }
  // The first error stays. Returns Undefined.
  template <typename... Parts>
  Value Fail(const Parts&... parts) {
    return FailHere(Cat(parts...));
  }
  // An error that the template itself raises.
  Value Raise(const Text& message);

  // Counts work. False where it is too much, or something failed before.
  bool Step(size_t bytes = 0, size_t items = 0);
  bool FitsText(size_t bytes);
  // Memory that is never given back.
  bool Keep(size_t bytes);

  Value Make(Text text);
  Value Make(std::string_view bytes) { return Make(Text(bytes, /*own=*/false)); }  // nobody's: not the template's
  Value Make(List list);
  Value Make(Dict dict);
  // Lives as long as *this.
  Dict* MakeNamespace() { return Keep(kSmall) ? &namespaces_.emplace_back() : nullptr; }

 private:
  Value FailHere(std::string_view message);
  template <typename T>
  Value Counted(T value, size_t bytes);

  const std::string_view source_;
  const absl::Time now_;
  const KeepGoing keep_going_;
  const Limits limits_;
  absl::Status status_;
  size_t place_ = 0;
  int64_t steps_ = 0;
  int64_t memory_ = 0;
  std::deque<Dict> namespaces_;  // whose values count in memory_
};

// "line 3, at `{{ x.y }`"
std::string PlaceIn(std::string_view source, size_t place);

template <typename T>
const T* As(const Value& value) {
  return std::get_if<T>(&value);
}
// The text; null for what is none.
inline const Text* AsText(const Value& value) {
  const TextPtr* text = As<TextPtr>(value);
  return text == nullptr ? nullptr : text->get();
}
inline bool IsUndefined(const Value& value) {
  return std::holds_alternative<Undefined>(value);
}
std::string_view TypeName(const Value& value);
// "'x' is undefined", or what it is instead.
std::string Describe(const Value& value);

bool Truth(const Value& value);
bool Equal(const Value& a, const Value& b, Rendering& r);
// a < b: of numbers, texts or lists. Fails for others.
bool Less(const Value& a, const Value& b, Rendering& r);
// Whether `part` is in the text, list or dict.
bool Contains(const Value& whole, const Value& part, Rendering& r);
// The items of a list, keys of a dict, characters of a text; nothing of Undefined. Fails for others.
ListPtr ToList(const Value& value, Rendering& r);
// A whole number (bools are), or false.
bool ToInt(const Value& value, int64_t* number);
// A number of any kind, or false.
bool ToDouble(const Value& value, double* number);
// What Python's str() gives, and what repr() gives for what is in lists and dicts.
Text ToText(const Value& value, Rendering& r);
// As Python writes it: the shortest digits that give it back.
std::string FloatText(double number);

}  // namespace runahead::jinja
