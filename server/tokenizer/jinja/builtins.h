// What templates find there without defining it: operators, filters, tests, functions, and the methods and members of
// values. All of them are Python's or Jinja's of the same name.
#pragma once

#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "server/tokenizer/jinja/rendering.h"
#include "server/tokenizer/jinja/value.h"

namespace runahead::jinja {

struct Builtin {
  std::string_view name;        // "filter trim", "test defined", "function range", "get of a dict"
  std::string_view parameters;  // with blanks between them, "*": any
  Value (*run)(Call& call);     // call[0] is what it is applied to; but for functions
};

// Null where there is none.
const Builtin* FindBuiltin(std::string_view name);
// Fails where it does not take these arguments.
Value Run(const Builtin& builtin, Call& call);

struct Operator {
  std::string_view symbol;
  int strength;
  Value (*run)(const Value& left, const Value& right, Rendering& r);  // null: and, or
};
absl::Span<const Operator> Operators();
bool Equal(const Value& a, const Value& b, Rendering& r);
// a < b: of numbers or texts. Fails for others.
bool Less(const Value& a, const Value& b, Rendering& r);
Value Contains(const Value& part, const Value& whole, Rendering& r);
// Where `part`, which is not empty, begins in the text: the first `most` places, none within another. Linear in both.
std::vector<size_t> Places(const Text& text, const Text& part, int64_t most, Rendering& r);

// The filter tojson.
Value ToJson(Call& call);

// object.name, object[index] and object[from:to:step]. Undefined where there is none; fails for members of Undefined.
Value Member(const Value& object, const std::string& name);
Value Item(const Value& object, const Value& index, Rendering& r);
Value Slice(const Value& object, const Value& from, const Value& to, const Value& step, Rendering& r);

}  // namespace runahead::jinja
