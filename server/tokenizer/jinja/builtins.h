// What templates find there without defining it. All of it is Python's or Jinja's of the same name.
#pragma once

#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "server/tokenizer/jinja/rendering.h"
#include "server/tokenizer/python.h"

namespace runahead::jinja {

using Run = Value (*)(Call& call);

struct Builtin {
  enum Kind : unsigned { kFunction = 1, kFilter = 2, kTest = 4, kOfText = 8, kOfDict = 16 };
  std::string_view name;
  unsigned kinds;          // of which it is; a filter, test or method is applied to the first argument
  const char* parameters;  // with blanks between them; "*": any
  Run run;
};
// Null where there is none.
const Builtin* FindBuiltin(Builtin::Kind kind, std::string_view name);
// Fails where it does not take these arguments.
Value RunBuiltin(const Builtin& builtin, Call& call);
// Those that make or look at texts; FindBuiltin knows them, too.
absl::Span<const Builtin> TextBuiltins();

// Operators of two operands; those with a greater strength bind more.
struct Operator {
  std::string_view symbol;
  int strength;
  Run run;  // null: and, or
};
absl::Span<const Operator> Operators();

// What else stands in expressions.
Value Contains(Call& c);
Value Not(Call& c);
Value Negative(Call& c);
Value MakeDict(Call& c);  // key, value, key, value, ...
Value Slice(Call& c);     // object, from, to, step
Value Invoke(Call& c);    // function, its arguments

// A method, or else an item.
Value Member(const Value& object, const Text& member);
// An item, or else a method.
Value Item(const Value& object, const Value& index, Rendering& r);
// "a.b" of an item, its index, or itself.
Value Attribute(Value item, const Value& path, Rendering& r);
// An argument that must be a text, or has come as one.
const Text& TextAt(const Call& c, size_t i);

bool Equal(const Value& a, const Value& b, Rendering& r);
// a < b: of numbers or texts. Fails for others.
bool Less(const Value& a, const Value& b, Rendering& r);

}  // namespace runahead::jinja
