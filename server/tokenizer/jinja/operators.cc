#include <algorithm>

#include "server/tokenizer/jinja/builtins.h"

namespace runahead::jinja {
namespace {

[[noreturn]] void NoMeaning(const std::string& symbol, const Call& c) {
  for (const Value& operand : c.plain) {
    if (IsUndefined(operand)) Fail("an operand of ", symbol, ": ", Describe(operand));
  }
  Fail(TypeName(c[0]), " ", symbol, " ", TypeName(c[1]), " has no meaning here");
}

// Of integers.
template <char kSymbol>
Value Arithmetic(Call& c) {
  const auto a = ToInt(c[0]), b = ToInt(c[1]);
  if (!a || !b) NoMeaning(std::string(1, kSymbol), c);
  if (kSymbol == '%' && *b == 0) Fail("a division by 0");
  const auto result = Compute(*a, kSymbol, *b);
  if (!result) Fail("an integer is beyond 64 bits");
  return *result;
}

Value Concatenate(Call& c) {
  return c.r.Make(ToText(c[0], c.r) + ToText(c[1], c.r));
}

// A text, or arguments of a call as one: as they came, or else as `tojson` has them. Null: it is neither.
TextPtr Addend(const Value& value, Rendering& r) {
  if (const TextPtr* text = std::get_if<TextPtr>(&value)) return *text;
  const Dict* dict = As<Dict>(value);
  if (dict == nullptr || !dict->arguments) return nullptr;
  if (dict->came_as != nullptr) return dict->came_as;
  Call call{r, {value}};
  return std::get<TextPtr>(RunBuiltin(*FindBuiltin(Builtin::kFilter, "tojson"), call));
}

Value Add(Call& c) {
  if (const TextPtr a = Addend(c[0], c.r), b = a == nullptr ? a : Addend(c[1], c.r); b != nullptr) {
    return c.r.Make(*a + *b);
  }
  const List *a = As<List>(c[0]), *b = As<List>(c[1]);
  if (a == nullptr || b == nullptr || a->tuple != b->tuple) return Arithmetic<'+'>(c);
  std::vector<Value> joined = a->items;
  joined.insert(joined.end(), b->items.begin(), b->items.end());
  return c.r.Make(List(std::move(joined), a->tuple));
}

Value Multiply(Call& c) {
  const Text* text = As<Text>(c[0]);
  const auto times = ToInt(c[1]);
  if (text == nullptr || !times) return Arithmetic<'*'>(c);
  Text repeated;
  for (int64_t i = 0; i < *times; ++i) {
    c.r.Step();
    c.r.FitText(repeated.size());
    repeated += *text;
  }
  return c.r.Make(std::move(repeated));
}

}  // namespace

bool Equal(const Value& a, const Value& b, Rendering& r) {
  r.Step(SizeOf(a).value_or(0));
  if (const auto i = ToInt(a), j = ToInt(b); i && j) return *i == *j;
  if (const auto x = ToDouble(a), y = ToDouble(b); x && y) return *x == *y;
  if (As<Text>(a) != nullptr || As<Text>(b) != nullptr) {
    const Text *s = WrittenText(a), *t = WrittenText(b);
    return s != nullptr && t != nullptr && *s == *t;
  }
  if (a.index() != b.index()) return false;
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
    c.r.Step(text->size());
    return IsPart(*part, *text);
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
      {"not", 4, [](Call& c) -> Value { return !Truth(Contains(c)); }},  // with `in` behind it
      {"==", 4, [](Call& c) -> Value { return Equal(c[0], c[1], c.r); }},
      {"!=", 4, [](Call& c) -> Value { return !Equal(c[0], c[1], c.r); }},
      {"<", 4, [](Call& c) -> Value { return Less(c[0], c[1], c.r); }},
      {">", 4, [](Call& c) -> Value { return Less(c[1], c[0], c.r); }},
      {"<=", 4, [](Call& c) -> Value { return !Less(c[1], c[0], c.r); }},
      {">=", 4, [](Call& c) -> Value { return !Less(c[0], c[1], c.r); }},
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

Value MakeDict(Call& c) {
  Dict dict;
  for (size_t i = 0; i < c.plain.size(); i += 2) {
    if (As<Text>(c[i]) == nullptr) Fail("the key of a dict must be a string here, and ", Describe(c[i]));
    dict.Set(*As<Text>(c[i]), c[i + 1]);
  }
  return c.r.Make(std::move(dict));
}

Value Invoke(Call& c) {
  const Value callee = c[0];
  if (As<Function>(callee) == nullptr) Fail("it cannot be called: ", Describe(callee));
  c.plain.erase(c.plain.begin());
  return As<Function>(callee)->run(c);
}

Value Member(const Value& object, const Text& member) {
  if (IsUndefined(object)) Fail("there is no ", ShownText(member), " of it: ", Describe(object));
  const std::string name = ToUtf8(member);
  const Dict* dict = As<Dict*>(object) == nullptr ? As<Dict>(object) : *As<Dict*>(object);
  const Builtin* method = nullptr;
  if (As<Text>(object) != nullptr) method = FindBuiltin(Builtin::kOfText, name);
  if (As<Dict>(object) != nullptr) method = FindBuiltin(Builtin::kOfDict, name);
  const Value* found = method != nullptr || dict == nullptr ? nullptr : dict->Get(name);
  if (found != nullptr) return *found;
  Value self = object;
  if (method == nullptr && dict != nullptr && dict->came_as != nullptr) {
    method = FindBuiltin(Builtin::kOfText, name);
    self = dict->came_as;
  }
  if (method == nullptr) return Missing(ShownText(member));
  return std::make_shared<const Function>(Function{[method, self](Call& call) {
    call.plain.insert(call.plain.begin(), self);
    return RunBuiltin(*method, call);
  }});
}

Value Item(const Value& object, const Value& index, Rendering& r) {
  if (IsUndefined(object)) Fail("there is no item of it: ", Describe(object));
  if (const Text* text = As<Text>(index)) {
    const Value* found = As<Dict>(object) == nullptr ? nullptr : As<Dict>(object)->Get(ToUtf8(*text));
    return found == nullptr ? Member(object, *text) : *found;
  }
  const auto at = ToInt(index);
  const List* list = As<List>(object);
  const Text* text = WrittenText(object);
  if (!at || (list == nullptr && text == nullptr)) return Missing("an item");
  const auto size = static_cast<int64_t>(list != nullptr ? list->items.size() : text->size()),
             i = *at < 0 ? *at + size : *at;
  if (i < 0 || i >= size) return Missing("an item");  // which one may be the caller's word
  return list != nullptr ? list->items[i] : r.Make(Text(1, (*text)[i]));
}

Value Attribute(Value item, const Value& path, Rendering& r) {
  if (IsUndefined(path) || As<None>(path) != nullptr) return item;
  if (As<Text>(path) == nullptr) return Item(item, path, r);
  const Text& names = *As<Text>(path);
  ForBetween(names, U".", /*most=*/-1,
             [&](size_t place, size_t size) { item = Item(item, r.Make(names.substr(place, size)), r); });
  return item;
}

Value Slice(Call& c) {
  const Text* text = WrittenText(c[0]);
  const List* list = As<List>(c[0]);
  if (text == nullptr && list == nullptr) Fail("it cannot be sliced: ", Describe(c[0]));
  c.plain.resize(4, None());
  for (size_t i = 1; i < 4; ++i) {
    if (As<None>(c[i]) == nullptr && !ToInt(c[i])) Fail("a slice needs integers: ", Describe(c[i]));
  }
  const auto size = static_cast<int64_t>(text != nullptr ? text->size() : list->items.size()),
             step = ToInt(c[3]).value_or(1);
  if (step == 0) Fail("the step of a slice is 0");
  const auto [begin, end] = SliceBounds(size, ToInt(c[1]), ToInt(c[2]), step);
  Text part;
  std::vector<Value> items;
  for (__int128 i = begin; step > 0 ? i < end : i > end; i += step) {
    text != nullptr ? part.push_back((*text)[i]) : items.push_back(list->items[i]);
  }
  return text != nullptr ? c.r.Make(std::move(part)) : c.r.Make(List(std::move(items), list->tuple));
}

}  // namespace runahead::jinja
