// Operators of two operands.
#include <cmath>

#include "server/tokenizer/jinja/evaluator.h"

namespace runahead::jinja {
namespace {

Value Power(int64_t base, int64_t exponent, Rendering& r) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent && base != 1 && r.Step(); ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return r.Fail("an integer is beyond 64 bits");
    if (base == 0 || base == -1) return base == 0 ? int64_t{0} : int64_t{exponent % 2 == 0 ? 1 : -1};
  }
  return result;
}

// Rounded down, as Python does.
Value OfInts(std::string_view name, int64_t a, int64_t b, Rendering& r) {
  int64_t result = 0;
  bool beyond = false;
  if (name == "+") beyond = __builtin_add_overflow(a, b, &result);
  if (name == "-") beyond = __builtin_sub_overflow(a, b, &result);
  if (name == "*") beyond = __builtin_mul_overflow(a, b, &result);
  if (name == "**") return Power(a, b, r);
  if (name == "//" || name == "%") {
    if (b == -1) {
      beyond = name == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      const bool down = a % b != 0 && (a < 0) != (b < 0);
      result = name == "//" ? a / b - (down ? 1 : 0) : a % b + (down ? b : 0);
    }
  }
  return beyond ? r.Fail("an integer is beyond 64 bits") : Value(result);
}

Value OfDoubles(std::string_view name, double a, double b) {
  if (name == "+") return a + b;
  if (name == "-") return a - b;
  if (name == "*") return a * b;
  if (name == "/") return a / b;
  if (name == "//") return std::floor(a / b);
  if (name == "%") return a - b * std::floor(a / b);
  return std::pow(a, b);
}

Value Repeated(const Value& what, int64_t times, Rendering& r) {
  if (times < 0) times = 0;
  if (const Text* text = AsText(what)) {
    Text out;
    for (int64_t i = 0; i < times && r.Step(text->size()) && r.FitsText(out.size()); ++i) out.Append(*text);
    return r.Make(std::move(out));
  }
  const List& list = **As<ListPtr>(what);
  List out;
  out.tuple = list.tuple;
  for (int64_t i = 0; i < times && r.Step(0, list.items.size()); ++i) {
    out.items.insert(out.items.end(), list.items.begin(), list.items.end());
  }
  return r.Make(std::move(out));
}

}  // namespace

Value Arithmetic(std::string_view name, const Value& a, const Value& b, Rendering& r) {
  int64_t i = 0, j = 0;
  double x = 0, y = 0;
  if (ToDouble(a, &x) && ToDouble(b, &y)) {
    if (y == 0 && (name == "/" || name == "//" || name == "%")) return r.Fail("a division by 0");
    const bool whole = ToInt(a, &i) && ToInt(b, &j) && name != "/" && !(name == "**" && j < 0);
    return whole ? OfInts(name, i, j, r) : OfDoubles(name, x, y);
  }
  const auto repeats = [](const Value& v) { return AsText(v) != nullptr || As<ListPtr>(v) != nullptr; };
  if (name == "*" && repeats(a) && ToInt(b, &j)) return Repeated(a, j, r);
  if (name == "*" && repeats(b) && ToInt(a, &i)) return Repeated(b, i, r);
  const Text *s = AsText(a), *t = AsText(b);
  if (name == "+" && s != nullptr && t != nullptr) {
    if (!r.Step(s->size() + t->size()) || !r.FitsText(s->size() + t->size())) return Undefined();
    Text joined = *s;
    joined.Append(*t);
    return r.Make(std::move(joined));
  }
  const ListPtr *l = As<ListPtr>(a), *m = As<ListPtr>(b);
  if (name == "+" && l != nullptr && m != nullptr && (*l)->tuple == (*m)->tuple) {
    if (!r.Step(0, (*l)->items.size() + (*m)->items.size())) return Undefined();
    List joined = **l;
    joined.items.insert(joined.items.end(), (*m)->items.begin(), (*m)->items.end());
    return r.Make(std::move(joined));
  }
  for (const Value* operand : {&a, &b}) {
    if (IsUndefined(*operand)) return r.Fail("an operand of ", name, ": ", Describe(*operand));
  }
  return r.Fail(TypeName(a), " ", name, " ", TypeName(b), " has no meaning here");
}

}  // namespace runahead::jinja
