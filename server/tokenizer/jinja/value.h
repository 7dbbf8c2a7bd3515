// What a template computes with. Outside this folder, values are made and read, and nothing else of this is used.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/tokenizer/marked_text.h"

namespace runahead::jinja {

// What ends parsing or rendering, wherever it is thrown. It never leaves the functions of template.h.
struct Failure {
  absl::Status status;
  bool complete;  // the place in the template is in it, or does not belong there
};
template <typename... Pieces>
[[noreturn]] void Fail(const Pieces&... pieces) {
  throw Failure{absl::InvalidArgumentError(absl::StrCat(pieces...)), /*complete=*/false};
}

class Rendering;
struct List;
struct Dict;
struct Function;
struct None {};
struct Undefined {
  // What was looked for, without what callers wrote; null: an argument that is not given.
  std::shared_ptr<const std::string> name = nullptr;
};
using Text = MarkedText;
using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
// Immutable, but for namespaces (Dict*), which the rendering owns: so there are no cycles to free.
using Value = std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, Dict*,
                           std::shared_ptr<const Function>>;

struct List {
  explicit List(std::vector<Value> items = {}, bool tuple = false);

  std::vector<Value> items;
  bool tuple;
  int depth = 1;  // of lists and dicts in it
};

// In the order of insertion. All keys are texts.
struct Dict {
  std::vector<std::pair<TextPtr, Value>> items;
  absl::flat_hash_map<std::string, size_t> index;
  int depth = 1;
  // Arguments of a call, which some templates take for JSON as a text: a text that is added to them is added to their
  // JSON. Where they came as such a text, it is also what they are written as, compared and cut as.
  bool arguments = false;
  TextPtr came_as = nullptr;  // of `arguments`; null: they came as an object

  // Replaces the value of a key that is there.
  void Set(const Text& key, Value value);
  const Value* Get(const std::string& key) const;
};

struct Call {
  Rendering& r;
  std::vector<Value> plain = {};
  std::vector<std::pair<std::string, Value>> named = {};

  const Value& operator[](size_t i) const { return plain[i]; }
  // Puts all into `plain`, one for each name: Undefined without a name where none is given. Fails for others.
  void Bind(const std::vector<std::string>& names, const std::string& function);
};
struct Function {
  std::function<Value(Call& call)> run;
};

// What the value holds, or null: As<bool>(value), As<List>(value).
template <typename T>
const T* As(const Value& value) {
  if constexpr (std::is_constructible_v<Value, std::shared_ptr<const T>>) {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&value);
    return held == nullptr ? nullptr : held->get();
  } else {
    return std::get_if<T>(&value);
  }
}
inline bool IsUndefined(const Value& value) {
  return std::holds_alternative<Undefined>(value);
}
// `name` is in messages: it shows nothing that callers wrote.
inline Value Missing(std::string_view name) {
  return Undefined{std::make_shared<const std::string>(name)};
}
// With its article: "a list".
const char* TypeName(const Value& value);
// "'x' is undefined", or what it is instead.
std::string Describe(const Value& value);

bool Truth(const Value& value);
// A whole number; bools are.
std::optional<int64_t> ToInt(const Value& value);
std::optional<double> ToDouble(const Value& value);
// The text that it is, or that it came as; null: neither.
const Text* WrittenText(const Value& value);
// Of a text, list or dict.
std::optional<size_t> SizeOf(const Value& value);
// The items of a list, keys of a dict, characters of a text; nothing of Undefined. Fails for others.
ListPtr ToList(const Value& value, Rendering& r);
// What Python's str() gives, with repr() for what is in lists and dicts; arguments that came as a text are that text.
Text ToText(const Value& value, Rendering& r);

}  // namespace runahead::jinja
