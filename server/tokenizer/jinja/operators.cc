#include <algorithm>

#include "server/tokenizer/jinja/builtins.h"

namespace runahead::jinja {
namespace {

[[noreturn]] void NoMeaning(std::string_view symbol, const Call& c) {
  for (const Value& operand : c.plain) {
    if (IsUndefined(operand)) Fail("an operand of ", symbol, ": ", Describe(operand));
  }
  Fail(TypeName(c[0]), " ", symbol, " ", TypeName(c[1]), " has no meaning here");
}

// Of integers.
template <char kSymbol>
Value Arithmetic(Call& c) {
  const auto i = ToInt(c[0]), j = ToInt(c[1]);
  if (!i || !j) NoMeaning(std::string(1, kSymbol), c);
  int64_t result = 0;
  bool beyond = false;
  if (kSymbol == '+') beyond = __builtin_add_overflow(*i, *j, &result);
  if (kSymbol == '-') beyond = __builtin_sub_overflow(*i, *j, &result);
  if (kSymbol == '*') beyond = __builtin_mul_overflow(*i, *j, &result);
  if (kSymbol == '%') {
    if (*j == 0) Fail("a division by 0");
    result = *j == -1 ? 0 : *i % *j;
    if (result != 0 && (result < 0) != (*j < 0)) result += *j;  // rounded down, as Python does
  }
  if (beyond) Fail("an integer is beyond 64 bits");
  return result;
}

Value Concatenate(Call& c) {
  Text joined = ToText(c[0], c.r) + ToText(c[1], c.r);
  c.r.Step(joined.size());
  return c.r.Make(std::move(joined));
}

Value Add(Call& c) {
  if (As<Text>(c[0]) != nullptr && As<Text>(c[1]) != nullptr) return Concatenate(c);
  const List *a = As<List>(c[0]), *b = As<List>(c[1]);
  if (a == nullptr || b == nullptr || a->tuple != b->tuple) return Arithmetic<'+'>(c);
  c.r.Step(0, a->items.size() + b->items.size());
  List joined = *a;
  for (const Value& item : b->items) joined.Add(item);
  return c.r.Make(std::move(joined));
}

Value Multiply(Call& c) {
  const Text* text = As<Text>(c[0]);
  const auto times = ToInt(c[1]);
  if (text == nullptr || !times) return Arithmetic<'*'>(c);
  Text repeated;
  for (int64_t i = 0; i < *times; ++i) {
    c.r.Step(text->size());
    c.r.FitText(repeated.size());
    repeated += *text;
  }
  return c.r.Make(std::move(repeated));
}

template <bool kWanted>
Value Equals(Call& c) {
  return Equal(c[0], c[1], c.r) == kWanted;
}

// a < b, of numbers or texts; of other operators one side, or the result, is the other way round.
template <bool kSwapped, bool kWanted>
Value Orders(Call& c) {
  const Value &a = c[kSwapped ? 1 : 0], &b = c[kSwapped ? 0 : 1];
  return Less(a, b, c.r) == kWanted;
}

}  // namespace

bool Equal(const Value& a, const Value& b, Rendering& r) {
  r.Step(SizeOf(a).value_or(0));
  if (const auto i = ToInt(a), j = ToInt(b); i && j) return *i == *j;
  if (const auto x = ToDouble(a), y = ToDouble(b); x && y) return *x == *y;
  if (a.index() != b.index()) return false;
  if (As<Text>(a) != nullptr) return *As<Text>(a) == *As<Text>(b);
  if (const List* l = As<List>(a), *m = As<List>(b); l != nullptr) {
    return l->tuple == m->tuple && std::equal(l->items.begin(), l->items.end(), m->items.begin(), m->items.end(),
                                              [&r](const Value& x, const Value& y) { return Equal(x, y, r); });
  }
  if (const Dict* d = As<Dict>(a), *e = As<Dict>(b); d != nullptr) {
    return d->items.size() == e->items.size() && std::all_of(d->items.begin(), d->items.end(), [&](const auto& item) {
             const Value* other = e->Get(ToUtf8(*item.first));
             return other != nullptr && Equal(item.second, *other, r);
           });
  }
  if (As<Dict*>(a) != nullptr) return *As<Dict*>(a) == *As<Dict*>(b);
  return As<Function>(a) == As<Function>(b);
}

bool Less(const Value& a, const Value& b, Rendering& r) {
  r.Step(SizeOf(a).value_or(0));
  if (const auto i = ToInt(a), j = ToInt(b); i && j) return *i < *j;
  if (const auto x = ToDouble(a), y = ToDouble(b); x && y) return *x < *y;
  if (As<Text>(a) == nullptr || As<Text>(b) == nullptr) NoMeaning("<", {r, {a, b}});
  return *As<Text>(a) < *As<Text>(b);
}

Value Contains(Call& c) {
  const Text* part = As<Text>(c[0]);
  if (const Text* text = As<Text>(c[1])) {
    if (part == nullptr) Fail(TypeName(c[0]), " cannot be in a string");
    return part->empty() || !Places(*text, *part, 1, c.r).empty();
  }
  if (const Dict* dict = As<Dict>(c[1])) return part != nullptr && dict->Get(ToUtf8(*part)) != nullptr;
  const ListPtr list = ToList(c[1], c.r);
  const auto is = [&](const Value& item) { return Equal(item, c[0], c.r); };
  return std::any_of(list->items.begin(), list->items.end(), is);
}

absl::Span<const Operator> Operators() {
  static constexpr Operator kOperators[] = {
      {"or", 1, nullptr},
      {"and", 2, nullptr},
      {"in", 4, Contains},
      {"==", 4, Equals<true>},
      {"!=", 4, Equals<false>},
      {"<", 4, Orders<false, true>},
      {">", 4, Orders<true, true>},
      {"<=", 4, Orders<true, false>},
      {">=", 4, Orders<false, false>},
      {"+", 5, Add},
      {"-", 5, Arithmetic<'-'>},
      {"~", 6, Concatenate},
      {"*", 7, Multiply},
      {"%", 7, Arithmetic<'%'>},
  };
  return kOperators;
}

Value Not(Call& c) {
  return !Truth(c[0]);
}

Value Negative(Call& c) {
  if (const double* real = As<double>(c[0])) return -*real;
  c.plain.insert(c.plain.begin(), int64_t{0});
  return Arithmetic<'-'>(c);
}

Value MakeList(Call& c) {
  List list;
  for (Value& item : c.plain) list.Add(std::move(item));
  return c.r.Make(std::move(list));
}

Value MakeTuple(Call& c) {
  List list{{}, /*tuple=*/true};
  for (Value& item : c.plain) list.Add(std::move(item));
  return c.r.Make(std::move(list));
}

Value MakeDict(Call& c) {
  Dict dict;
  for (size_t i = 0; i < c.plain.size(); i += 2) {
    if (As<Text>(c[i]) == nullptr) Fail("the key of a dict must be a string here, and ", Describe(c[i]));
    dict.Set(*As<Text>(c[i]), c[i + 1]);
  }
  return c.r.Make(std::move(dict));
}

Value Member(Call& c) {
  const Value object = c[0];
  const std::string name = ToUtf8(*As<Text>(c[1]));
  if (IsUndefined(object)) Fail("there is no ", name, " of it: ", Describe(object));
  const Dict* dict = As<Dict>(object);
  const Builtin* method = As<Text>(object) != nullptr ? FindBuiltin(Builtin::kOfText, name)
                          : dict != nullptr           ? FindBuiltin(Builtin::kOfDict, name)
                                                      : nullptr;
  if (method == nullptr) {
    if (As<Dict*>(object) != nullptr) dict = *As<Dict*>(object);
    const Value* found = dict == nullptr ? nullptr : dict->Get(name);
    return found == nullptr ? Missing(name) : *found;
  }
  return std::make_shared<const Function>(Function{[method, object](Call& call) {
    call.plain.insert(call.plain.begin(), object);
    return RunBuiltin(*method, call);
  }});
}

Value Item(Call& c) {
  if (IsUndefined(c[0])) Fail("there is no item of it: ", Describe(c[0]));
  if (const Text* name = As<Text>(c[1])) {
    const Dict* dict = As<Dict>(c[0]);
    const Value* found = dict == nullptr ? nullptr : dict->Get(ToUtf8(*name));
    return found == nullptr ? Member(c) : *found;
  }
  const auto at = ToInt(c[1]);
  const List* list = As<List>(c[0]);
  const Text* text = As<Text>(c[0]);
  if (!at || (list == nullptr && text == nullptr)) return Missing("an item");
  const auto size = static_cast<int64_t>(*SizeOf(c[0])), i = *at < 0 ? *at + size : *at;
  if (i < 0 || i >= size) return Missing(Cat("[", *at, "]"));
  return list != nullptr ? list->items[i] : c.r.Make(Text(1, (*text)[i]));
}

Value Slice(Call& c) {
  const Text* text = As<Text>(c[0]);
  const List* list = As<List>(c[0]);
  if (text == nullptr && list == nullptr) Fail("it cannot be sliced: ", Describe(c[0]));
  c.plain.resize(4, None());
  for (size_t i = 1; i < 4; ++i) {
    if (As<None>(c[i]) == nullptr && !ToInt(c[i])) Fail("a slice needs integers: ", Describe(c[i]));
  }
  const auto size = static_cast<int64_t>(*SizeOf(c[0])), step = ToInt(c[3]).value_or(1);
  if (step == 0) Fail("the step of a slice is 0");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](size_t i, int64_t absent) {
    const auto at = ToInt(c[i]);
    return at ? std::clamp(*at < 0 ? *at + size : *at, low, high) : absent;
  };
  const int64_t begin = bound(1, step > 0 ? low : high), end = bound(2, step > 0 ? high : low);
  c.r.Step(text != nullptr ? size : 0, list != nullptr ? size : 0);
  Text part;
  List items{{}, list != nullptr && list->tuple};
  for (__int128 i = begin; step > 0 ? i < end : i > end; i += step) {
    text != nullptr ? part.push_back((*text)[i]) : items.Add(list->items[i]);
  }
  return text != nullptr ? c.r.Make(std::move(part)) : c.r.Make(std::move(items));
}

}  // namespace runahead::jinja
