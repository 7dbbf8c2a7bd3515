// What templates find there without defining it: filters, tests, functions, and the methods and members of values.
// All of them are Python's or Jinja's of the same name, with the parameters that are listed beside them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/tokenizer/jinja/value.h"

namespace runahead::jinja {

struct Arguments {
  std::vector<Value> plain;
  std::vector<std::pair<std::string, Value>> named;
};

// A call of something that is built in.
struct Call {
  Rendering& r;
  Value self;       // the input of a filter or test, or whose method it is
  Arguments given;  // `plain` has one for each parameter, Undefined where none was given
  const Value& operator[](size_t i) const { return given.plain[i]; }
};

struct Builtin {
  std::string_view parameters;  // their names, with blanks between them; "*": any number, and any names
  Value (*run)(Call& call);
};

// Null where there is none.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindFunction(std::string_view name);
const Builtin* FindMethod(const Value& self, std::string_view name);
inline bool HasFilter(std::string_view name) {
  return FindFilter(name) != nullptr;
}
inline bool HasTest(std::string_view name) {
  return FindTest(name) != nullptr;
}

// Fails where `builtin` is null, or does not take these arguments. `kind` and `name` are for errors.
Value Run(const Builtin* builtin, std::string_view kind, std::string_view name, Value self, Arguments given,
          Rendering& r);

// object.name, object[index] and object[from:to:step]. Undefined where there is none; fails for members of Undefined.
Value Member(const Value& object, std::string_view name, Rendering& r);
Value Item(const Value& object, const Value& index, Rendering& r);
Value Slice(const Value& object, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step, Rendering& r);

// Of filters and methods alike.
Value Replaced(const Text& text, const Text& old, const Text& fresh, int64_t most, Rendering& r);
Value Joined(const Text& separator, const std::vector<Value>& items, Rendering& r);
Value Capitalized(const Text& text, Rendering& r);
// An argument that is to be a text; an empty one, and an error, where it is not.
const Text& TextArgument(const Call& call, size_t i);

}  // namespace runahead::jinja
