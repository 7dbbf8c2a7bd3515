// What a template computes with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead::jinja {

// What ends parsing or rendering, wherever it is thrown. It never leaves the functions of template.h and ParseJson.
struct Failure {
  absl::Status status;
  bool complete;  // the place in the template is in it, or does not belong there
};
template <typename... Pieces>
std::string Cat(const Pieces&... pieces) {
  std::ostringstream out;
  (out << ... << pieces);
  return out.str();
}
template <typename... Pieces>
[[noreturn]] void Fail(const Pieces&... pieces) {
  throw Failure{absl::InvalidArgumentError(Cat(pieces...)), /*complete=*/false};
}

// The bit of characters that are the template's: control tokens may be in them. Others came from whoever called.
inline constexpr char32_t kOwn = 0x80000000;
// Characters are equal, and in order, whosever they are.
struct AnyOrigin : std::char_traits<char32_t> {
  static bool eq(char32_t a, char32_t b) { return (a | kOwn) == (b | kOwn); }
  static bool lt(char32_t a, char32_t b) { return (a | kOwn) < (b | kOwn); }
  static int compare(const char32_t* a, const char32_t* b, size_t size);
  static const char32_t* find(const char32_t* text, size_t size, char32_t c);
};
// Of code points with that bit; U"..." is not the template's.
using Text = std::basic_string<char32_t, AnyOrigin>;

// U+FFFD stands for what is no UTF-8.
Text FromUtf8(std::string_view utf8, bool own);
std::string ToUtf8(const Text& text);
// Neighbours of one origin are one part: a control token that the template puts together is found.
std::vector<TextPart> Parts(const Text& text);
// Python's idea of white space: Unicode's, and four separators of ASCII.
bool IsSpace(char32_t c);
// Without white space, or the characters of `chars` if it is not null, at the ends that are named.
Text Strip(const Text& text, const Text* chars, bool left, bool right);
// One character to one; of those that become two, only the German sharp s does.
Text ToCase(const Text& text, bool upper);

class Rendering;
// Where `part`, which is not empty, begins: the first `most` places, none within another. Takes time linear in both.
std::vector<size_t> Places(const Text& text, const Text& part, int64_t most, Rendering& r);

struct List;
struct Dict;
struct Function;
struct None {};
struct Undefined {
  std::shared_ptr<const std::string> name = nullptr;  // what was looked for; null: an argument that is not given
};
using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
// Immutable, but for namespaces (Dict*), which the rendering owns: so there are no cycles to free.
using Value = std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, Dict*,
                           std::shared_ptr<const Function>>;

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;  // of lists and dicts in it

  void Add(Value value);
};

// In the order of insertion. All keys are texts.
struct Dict {
  std::vector<std::pair<TextPtr, Value>> items;
  absl::flat_hash_map<std::string, size_t> index;
  int depth = 1;

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
  void Bind(const std::vector<std::string>& names, std::string_view function);
};
struct Function {
  std::function<Value(Call& call)> run;
};

// What the value holds, or null: As<bool>(value), As<List>(value).
template <typename T>
const T* As(const Value& value) {
  if constexpr (std::is_same_v<T, Text> || std::is_same_v<T, List> || std::is_same_v<T, Dict> ||
                std::is_same_v<T, Function>) {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&value);
    return held == nullptr ? nullptr : held->get();
  } else {
    return std::get_if<T>(&value);
  }
}
inline bool IsUndefined(const Value& value) {
  return std::holds_alternative<Undefined>(value);
}
inline Value Missing(std::string_view name) {
  return Undefined{std::make_shared<const std::string>(name)};
}
// With its article: "a list".
std::string_view TypeName(const Value& value);
// "'x' is undefined", or what it is instead.
std::string Describe(const Value& value);

bool Truth(const Value& value);
// A whole number; bools are.
std::optional<int64_t> ToInt(const Value& value);
std::optional<double> ToDouble(const Value& value);
// Of a text, list or dict.
std::optional<size_t> SizeOf(const Value& value);
// The items of a list, keys of a dict, characters of a text; nothing of Undefined. Fails for others.
ListPtr ToList(const Value& value, Rendering& r);
// What Python's str() gives, with repr() for what is in lists and dicts.
Text ToText(const Value& value, Rendering& r);

// Of arrays and objects in one another, and of values in all, in JSON of a caller.
inline constexpr size_t kMaxJsonDepth = 50, kMaxJsonValues = size_t{1} << 20;
// What the JSON says; all text in it is the caller's. INVALID_ARGUMENT where it is none, an object has a name twice, or
// a number is beyond 64 bits.
absl::StatusOr<Value> ParseJson(std::string_view json);

}  // namespace runahead::jinja
