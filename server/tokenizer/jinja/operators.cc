// Operators, and members, items and slices of values.
#include <algorithm>
#include <cstring>

#include "server/tokenizer/jinja/builtins.h"

namespace runahead::jinja {
namespace {

[[noreturn]] void NoMeaning(const Value& a, std::string_view symbol, const Value& b) {
  for (const Value* operand : {&a, &b}) {
    if (IsUndefined(*operand)) Fail("an operand of ", symbol, ": ", Describe(*operand));
  }
  Fail(TypeName(a), " ", symbol, " ", TypeName(b), " has no meaning here");
}

// Of integers.
template <char kSymbol>
Value Arithmetic(const Value& a, const Value& b, Rendering&) {
  const auto i = ToInt(a), j = ToInt(b);
  if (!i || !j) NoMeaning(a, std::string(1, kSymbol), b);
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

Value Multiply(const Value& a, const Value& b, Rendering& r) {
  const Text* text = As<Text>(a);
  const auto times = ToInt(b);
  if (text == nullptr || !times) return Arithmetic<'*'>(a, b, r);
  Text repeated;
  for (int64_t i = 0; i < *times; ++i) {
    r.Step(text->size());
    r.FitText(repeated.size() + text->size());
    repeated += *text;
  }
  return r.Make(std::move(repeated));
}

Value Concatenate(const Value& a, const Value& b, Rendering& r) {
  Text joined = ToText(a, r) + ToText(b, r);
  r.Step(joined.size());
  return r.Make(std::move(joined));
}

Value Add(const Value& a, const Value& b, Rendering& r) {
  if (As<Text>(a) != nullptr && As<Text>(b) != nullptr) return Concatenate(a, b, r);
  const List *l = As<List>(a), *m = As<List>(b);
  if (l == nullptr || m == nullptr || l->tuple != m->tuple) return Arithmetic<'+'>(a, b, r);
  r.Step(0, l->items.size() + m->items.size());
  List joined = *l;
  for (const Value& item : m->items) joined.Add(item);
  return r.Make(std::move(joined));
}

// != 0 where a is the smaller one: of numbers and texts.
bool Less(const Value& a, std::string_view symbol, const Value& b, Rendering& r) {
  r.Step(As<Text>(a) == nullptr ? 0 : As<Text>(a)->size());
  if (const auto i = ToInt(a), j = ToInt(b); i && j) return *i < *j;
  if (const auto x = ToDouble(a), y = ToDouble(b); x && y) return *x < *y;
  if (As<Text>(a) != nullptr && As<Text>(b) != nullptr) return *As<Text>(a) < *As<Text>(b);
  NoMeaning(a, symbol, b);
}

}  // namespace

bool Equal(const Value& a, const Value& b, Rendering& r) {
  r.Step(As<Text>(a) == nullptr ? 0 : As<Text>(a)->size());
  if (const auto i = ToInt(a), j = ToInt(b); i && j) return *i == *j;
  if (const auto x = ToDouble(a), y = ToDouble(b); x && y) return *x == *y;
  if (a.index() != b.index()) return false;
  if (const Text* text = As<Text>(a)) return *text == *As<Text>(b);
  const auto equal = [&r](const Value& x, const Value& y) { return Equal(x, y, r); };
  if (const List* l = As<List>(a), *m = As<List>(b); l != nullptr) {
    return l->tuple == m->tuple &&
           std::equal(l->items.begin(), l->items.end(), m->items.begin(), m->items.end(), equal);
  }
  if (const Dict* d = As<Dict>(a), *e = As<Dict>(b); d != nullptr) {
    return d->items.size() == e->items.size() && std::all_of(d->items.begin(), d->items.end(), [&](const auto& item) {
             const Value* other = e->Get(ToUtf8(*item.first));
             return other != nullptr && Equal(item.second, *other, r);
           });
  }
  if (Dict* const* space = As<Dict*>(a)) return *space == *As<Dict*>(b);
  return As<Function>(a) == As<Function>(b);
}

bool Less(const Value& a, const Value& b, Rendering& r) {
  return Less(a, "<", b, r);
}

std::vector<size_t> Places(const Text& text, const Text& part, int64_t most, Rendering& r) {
  const std::string bytes = ToUtf8(text), searched = ToUtf8(part);
  r.Step(text.size());
  std::vector<size_t> places;
  size_t at = 0, characters = 0;
  while (static_cast<int64_t>(places.size()) != most) {
    const void* found = memmem(bytes.data() + at, bytes.size() - at, searched.data(), searched.size());
    if (found == nullptr) break;
    r.Step();
    const size_t next = static_cast<const char*>(found) - bytes.data();
    for (; at < next; ++at) characters += (static_cast<unsigned char>(bytes[at]) & 0xC0) != 0x80;
    places.push_back(characters);
    at += searched.size();
    characters += part.size();
  }
  return places;
}

Value Contains(const Value& part, const Value& whole, Rendering& r) {
  const Text* searched = As<Text>(part);
  if (const Text* text = As<Text>(whole)) {
    if (searched == nullptr) Fail(TypeName(part), " cannot be in a string");
    return searched->empty() || !Places(*text, *searched, 1, r).empty();
  }
  if (const Dict* dict = As<Dict>(whole)) return searched != nullptr && dict->Get(ToUtf8(*searched)) != nullptr;
  const ListPtr list = ToList(whole, r);
  return std::any_of(list->items.begin(), list->items.end(), [&](const Value& item) { return Equal(item, part, r); });
}

absl::Span<const Operator> Operators() {
  static constexpr Operator kOperators[] = {
      {"or", 1, nullptr},
      {"and", 2, nullptr},
      {"in", 4, Contains},
      {"==", 4, [](const Value& a, const Value& b, Rendering& r) -> Value { return Equal(a, b, r); }},
      {"!=", 4, [](const Value& a, const Value& b, Rendering& r) -> Value { return !Equal(a, b, r); }},
      {"<", 4, [](const Value& a, const Value& b, Rendering& r) -> Value { return Less(a, "<", b, r); }},
      {">", 4, [](const Value& a, const Value& b, Rendering& r) -> Value { return Less(b, ">", a, r); }},
      {"<=", 4, [](const Value& a, const Value& b, Rendering& r) -> Value { return !Less(b, "<=", a, r); }},
      {">=", 4, [](const Value& a, const Value& b, Rendering& r) -> Value { return !Less(a, ">=", b, r); }},
      {"+", 5, Add},
      {"-", 5, Arithmetic<'-'>},
      {"~", 6, Concatenate},
      {"*", 7, Multiply},
      {"%", 7, Arithmetic<'%'>},
  };
  return kOperators;
}

Value Member(const Value& object, const std::string& name) {
  if (IsUndefined(object)) Fail("there is no ", name, " of it: ", Describe(object));
  Dict* const* space = As<Dict*>(object);
  const Dict* dict = space != nullptr ? *space : As<Dict>(object);
  const Builtin* method = FindBuiltin(name + " of " + std::string(TypeName(object)));
  if (method == nullptr) {
    const Value* found = dict == nullptr ? nullptr : dict->Get(name);
    return found == nullptr ? Missing(name) : *found;
  }
  return std::make_shared<const Function>(Function{[method, object](Call& call) {
    call.plain.insert(call.plain.begin(), object);
    return Run(*method, call);
  }});
}

Value Item(const Value& object, const Value& index, Rendering& r) {
  if (IsUndefined(object)) Fail("there is no item of it: ", Describe(object));
  if (const Text* name = As<Text>(index)) {
    const Dict* dict = As<Dict>(object);
    const Value* found = dict == nullptr ? nullptr : dict->Get(ToUtf8(*name));
    return found == nullptr ? Member(object, ToUtf8(*name)) : *found;
  }
  const auto at = ToInt(index);
  const List* list = As<List>(object);
  const Text* text = As<Text>(object);
  if (!at || (list == nullptr && text == nullptr)) return Missing("an item");
  const auto size = static_cast<int64_t>(list != nullptr ? list->items.size() : text->size());
  const int64_t i = *at < 0 ? *at + size : *at;
  if (i < 0 || i >= size) return Missing(Cat("[", *at, "]"));
  return list != nullptr ? list->items[i] : r.Make(Text(1, (*text)[i]));
}

Value Slice(const Value& object, const Value& from, const Value& to, const Value& step, Rendering& r) {
  const Text* text = As<Text>(object);
  const List* list = As<List>(object);
  if (text == nullptr && list == nullptr) Fail("it cannot be sliced: ", Describe(object));
  const auto size = static_cast<int64_t>(text != nullptr ? text->size() : list->items.size());
  const auto number = [](const Value& value) -> std::optional<int64_t> {
    if (As<None>(value) == nullptr && !ToInt(value)) Fail("a slice needs integers: ", Describe(value));
    return ToInt(value);
  };
  const int64_t by = number(step).value_or(1), low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  if (by == 0) Fail("the step of a slice is 0");
  const auto bound = [&](const Value& value, int64_t absent) {
    const auto at = number(value);
    return at ? std::clamp(*at < 0 ? *at + size : *at, low, high) : absent;
  };
  const int64_t begin = bound(from, by > 0 ? low : high), end = bound(to, by > 0 ? high : low);
  r.Step(text != nullptr ? size : 0, list != nullptr ? size : 0);
  Text part;
  List items{{}, list != nullptr && list->tuple};
  for (__int128 i = begin; by > 0 ? i < end : i > end; i += by) {
    text != nullptr ? part.push_back((*text)[i]) : items.Add(list->items[i]);
  }
  return text != nullptr ? r.Make(std::move(part)) : r.Make(std::move(items));
}

}  // namespace runahead::jinja
