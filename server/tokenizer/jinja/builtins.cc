// Tests, functions, and filters and methods of lists and dicts.
#include "server/tokenizer/jinja/builtins.h"

#include <algorithm>

#include "absl/strings/str_split.h"

namespace runahead::jinja {
namespace {

using enum Builtin::Kind;

// ---- Tests.

template <typename T>
Value Holds(Call& c) {
  return As<T>(c[0]) != nullptr;
}

template <bool kWanted>
Value IsEven(Call& c) {
  if (!ToInt(c[0])) Fail("even and odd are of integers, not of ", Describe(c[0]));
  return (*ToInt(c[0]) % 2 == 0) == kWanted;
}

Value HasItems(Call& c) {
  return SizeOf(c[0]).has_value() || IsUndefined(c[0]);
}

// ---- Lists and dicts.

Value Get(Call& c) {
  const Value* found = As<Text>(c[1]) == nullptr ? nullptr : As<Dict>(c[0])->Get(ToUtf8(*As<Text>(c[1])));
  return found != nullptr ? *found : IsUndefined(c[2]) ? None() : c[2];
}

Value Items(Call& c) {
  const Dict* dict = As<Dict>(c[0]);
  if (dict == nullptr) Fail("items of what is no dict: ", Describe(c[0]));
  std::vector<Value> items;
  for (const auto& [key, value] : dict->items) items.push_back(c.r.Make(List({key, value}, /*tuple=*/true)));
  return c.r.Make(List(std::move(items)));
}

Value Values(Call& c) {
  std::vector<Value> values;
  for (const auto& item : As<Dict>(c[0])->items) values.push_back(item.second);
  return c.r.Make(List(std::move(values)));
}

Value Keys(Call& c) {
  return ToList(c[0], c.r);
}

// By an attribute, without case: value, reverse, case_sensitive, attribute.
Value Sort(Call& c) {
  std::vector<std::pair<Value, Value>> keyed;
  const ListPtr list = ToList(c[0], c.r);
  for (const Value& item : list->items) {
    const Value key = Attribute(item, c[3], c.r);
    const Text* text = As<Text>(key);
    keyed.emplace_back(text == nullptr || Truth(c[2]) ? key : c.r.Make(ToCase(*text, /*upper=*/false)), item);
  }
  const auto less = [&](const auto& a, const auto& b) { return Less(a.first, b.first, c.r); };
  Truth(c[1]) ? std::stable_sort(keyed.rbegin(), keyed.rend(), less)
              : std::stable_sort(keyed.begin(), keyed.end(), less);
  std::vector<Value> sorted;
  for (const auto& [key, item] : keyed) sorted.push_back(item);
  return c.r.Make(List(std::move(sorted)));
}

Value DictSort(Call& c) {
  Call sort{c.r, {Items(c), c[2], c[1], int64_t{0}}};
  return Sort(sort);
}

template <bool kMost>
Value Extreme(Call& c) {
  Call sort{c.r, {c[0], kMost, c[1], c[2]}};
  return Item(Sort(sort), int64_t{0}, c.r);
}

// The filter or test that an argument names, of one item and of the arguments behind that one.
Value Applied(Builtin::Kind kind, const Value& item, const Call& c, size_t at) {
  const Text& name = TextAt(c, at);
  const Builtin* builtin = FindBuiltin(kind, ToUtf8(name));
  if (builtin == nullptr) Fail("the filter or test '", ShownText(name), "' is not known here");
  Call applied{c.r, {item}};
  applied.plain.insert(applied.plain.end(), c.plain.begin() + static_cast<std::ptrdiff_t>(at) + 1, c.plain.end());
  return RunBuiltin(*builtin, applied);
}

// What select, map and the like go over: nothing where the value is false.
ListPtr ItemsIn(const Value& value, Rendering& r) {
  const ListPtr list = Truth(value) ? ToList(value, r) : std::make_shared<const List>();
  r.Step(0, list->items.size());
  return list;
}

// select, reject, and the same by an attribute, which comes first; then the test's name and its arguments.
template <bool kWanted, bool kByAttribute>
Value Select(Call& c) {
  const size_t test = kByAttribute ? 2 : 1;
  if (c.plain.size() < test) Fail("the name of an attribute is missing");
  const ListPtr list = ItemsIn(c[0], c.r);
  std::vector<Value> kept;
  for (const Value& item : list->items) {
    const Value value = kByAttribute ? Attribute(item, c[1], c.r) : item;
    if (Truth(c.plain.size() > test ? Applied(kTest, value, c, test) : value) == kWanted) kept.push_back(item);
  }
  return c.r.Make(List(std::move(kept)));
}

Value Map(Call& c) {
  Value attribute, otherwise;
  for (const auto& [name, value] : c.named) {
    if (name != "attribute" && name != "default") Fail("'map' takes no argument '", name, "'");
    (name == "default" ? otherwise : attribute) = value;
  }
  const bool by_filter = IsUndefined(attribute);
  if (by_filter && c.plain.size() < 2) Fail("map needs a filter or an attribute");
  const ListPtr list = ItemsIn(c[0], c.r);
  std::vector<Value> mapped;
  for (const Value& item : list->items) {
    const Value value = by_filter ? Applied(kFilter, item, c, 1) : Attribute(item, attribute, c.r);
    mapped.push_back(IsUndefined(value) ? otherwise : value);
  }
  return c.r.Make(List(std::move(mapped)));
}

Value Length(Call& c) {
  const auto size = SizeOf(c[0]);
  return static_cast<int64_t>(size ? *size : ToList(c[0], c.r)->items.size());
}

Value Reversed(Call& c) {
  if (const Text* text = As<Text>(c[0])) return c.r.Make(Text(text->rbegin(), text->rend()));
  const ListPtr list = ToList(c[0], c.r);
  return c.r.Make(List({list->items.rbegin(), list->items.rend()}));
}

Value Default(Call& c) {
  return IsUndefined(c[0]) || (Truth(c[2]) && !Truth(c[0])) ? c[1] : c[0];
}

Value Whole(Call& c) {
  const auto whole = ToInt(c[0]) ? ToInt(c[0]) : WholeNumber(ToText(c[0], c.r));
  return whole ? *whole : IsUndefined(c[1]) ? Value(int64_t{0}) : c[1];
}

// ---- Functions.

Value Range(Call& c) {
  constexpr size_t kMost = 100'000;  // as Jinja's sandbox
  if (IsUndefined(c[1])) c.plain = {int64_t{0}, c[0], c[2]};
  const auto from = ToInt(c[0]), to = ToInt(c[1]), step = IsUndefined(c[2]) ? int64_t{1} : ToInt(c[2]);
  if (!from || !to || !step || *step == 0) Fail("range takes integers, and a step that is not 0");
  std::vector<Value> numbers;
  for (__int128 i = *from; *step > 0 ? i < *to : i > *to; i += *step) {
    if (numbers.size() >= kMost) Fail("a range of more than ", kMost, " numbers");
    numbers.emplace_back(static_cast<int64_t>(i));
  }
  return c.r.Make(List(std::move(numbers)));
}

Value Namespace(Call& c) {
  if (!c.plain.empty()) Fail("namespace takes arguments with names only");
  Dict* space = c.r.MakeNamespace();
  for (const auto& [name, value] : c.named) c.r.SetMember(*space, name, value);
  return space;
}

Value Raise(Call& c) {
  const std::string shown = ShownText(ToText(c[0], c.r));
  throw Failure{absl::InvalidArgumentError(absl::StrCat("the chat template says: ", shown)), /*complete=*/true};
}

Value Now(Call& c) {
  return c.r.Make(FromUtf8(absl::FormatTime(ToUtf8(TextAt(c, 0)), c.r.now, absl::UTCTimeZone()), /*own=*/false));
}

constexpr Builtin kBuiltins[] = {
    {"namespace", kFunction, "*", Namespace},
    {"raise_exception", kFunction, "message", Raise},
    {"range", kFunction, "start stop step", Range},
    {"strftime_now", kFunction, "format", Now},

    {"boolean", kTest, "value", Holds<bool>},
    {"defined", kTest, "value", [](Call& c) -> Value { return !IsUndefined(c[0]); }},
    {"eq", kTest, "a b", [](Call& c) -> Value { return Equal(c[0], c[1], c.r); }},
    {"equalto", kTest, "a b", [](Call& c) -> Value { return Equal(c[0], c[1], c.r); }},
    {"false", kTest, "value", [](Call& c) -> Value { return As<bool>(c[0]) != nullptr && !Truth(c[0]); }},
    {"even", kTest, "value", IsEven<true>},
    {"float", kTest, "value", Holds<double>},
    {"in", kTest, "value seq", Contains},
    {"integer", kTest, "value", Holds<int64_t>},
    {"iterable", kTest, "value", HasItems},
    {"mapping", kTest, "value", Holds<Dict>},
    {"ne", kTest, "a b", [](Call& c) -> Value { return !Equal(c[0], c[1], c.r); }},
    {"none", kTest, "value", Holds<None>},
    {"number", kTest, "value", [](Call& c) -> Value { return ToDouble(c[0]).has_value(); }},
    {"odd", kTest, "value", IsEven<false>},
    {"sequence", kTest, "value", HasItems},
    {"string", kTest, "value", Holds<Text>},
    {"true", kTest, "value", [](Call& c) -> Value { return As<bool>(c[0]) != nullptr && Truth(c[0]); }},
    {"undefined", kTest, "value", Holds<Undefined>},

    {"count", kFilter, "value", Length},
    {"d", kFilter, "value default_value boolean", Default},
    {"default", kFilter, "value default_value boolean", Default},
    {"dictsort", kFilter, "value case_sensitive reverse", DictSort},
    {"first", kFilter, "seq", [](Call& c) { return Item(ToList(c[0], c.r), int64_t{0}, c.r); }},
    {"get", kOfDict, "self key default", Get},
    {"int", kFilter, "value default", Whole},
    {"items", kFilter | kOfDict, "value", Items},
    {"keys", kOfDict, "self", Keys},
    {"last", kFilter, "seq", [](Call& c) { return Item(ToList(c[0], c.r), int64_t{-1}, c.r); }},
    {"length", kFilter, "value", Length},
    {"list", kFilter, "value", Keys},
    {"map", kFilter, "*", Map},
    {"max", kFilter, "value case_sensitive attribute", Extreme<true>},
    {"min", kFilter, "value case_sensitive attribute", Extreme<false>},
    {"reject", kFilter, "*", Select<false, false>},
    {"rejectattr", kFilter, "*", Select<false, true>},
    {"reverse", kFilter, "value", Reversed},
    {"select", kFilter, "*", Select<true, false>},
    {"selectattr", kFilter, "*", Select<true, true>},
    {"sort", kFilter, "value reverse case_sensitive attribute", Sort},
    {"values", kOfDict, "self", Values},
};

}  // namespace

const Builtin* FindBuiltin(Builtin::Kind kind, std::string_view name) {
  for (const absl::Span<const Builtin> builtins : {absl::MakeConstSpan(kBuiltins), TextBuiltins()}) {
    for (const Builtin& builtin : builtins) {
      if ((builtin.kinds & kind) != 0 && builtin.name == name) return &builtin;
    }
  }
  return nullptr;
}

Value RunBuiltin(const Builtin& builtin, Call& call) {
  const std::string parameters = builtin.parameters;
  if (parameters != "*") call.Bind(absl::StrSplit(parameters, ' '), std::string(builtin.name));
  return builtin.run(call);
}

}  // namespace runahead::jinja
