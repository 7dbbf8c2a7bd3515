#include "server/tokenizer/jinja/builtins.h"

#include <algorithm>
#include <ctime>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace runahead::jinja {
namespace {

constexpr auto kAny = std::numeric_limits<int64_t>::max();

const Text& TextAt(const Call& c, size_t i) {
  if (const Text* text = As<Text>(c[i])) return *text;
  Fail("an argument must be a string, and ", Describe(c[i]));
}

int64_t IntAt(const Call& c, size_t i, int64_t otherwise) {
  return IsUndefined(c[i]) ? otherwise : ToInt(c[i]).value_or(otherwise);
}

template <typename T>
Value Holds(Call& c) {
  return As<T>(c[0]) != nullptr;
}

Value HasItems(Call& c) {
  return As<Text>(c[0]) != nullptr || As<List>(c[0]) != nullptr || As<Dict>(c[0]) != nullptr || IsUndefined(c[0]);
}

// ---- Lists and dicts.

Value Items(Call& c) {
  const Dict* dict = As<Dict>(c[0]);
  if (dict == nullptr && !IsUndefined(c[0])) Fail("items of what is no dict: ", Describe(c[0]));
  List items;
  for (size_t i = 0; dict != nullptr && i < dict->items.size(); ++i) {
    List pair{{}, /*tuple=*/true};
    pair.Add(dict->items[i].first);
    pair.Add(dict->items[i].second);
    items.Add(c.r.Make(std::move(pair)));
  }
  return c.r.Make(std::move(items));
}

Value Values(Call& c) {
  List values;
  for (const auto& item : As<Dict>(c[0])->items) values.Add(item.second);
  return c.r.Make(std::move(values));
}

Value Get(Call& c) {
  const Value* found = As<Text>(c[1]) == nullptr ? nullptr : As<Dict>(c[0])->Get(ToUtf8(*As<Text>(c[1])));
  return found != nullptr ? *found : IsUndefined(c[2]) ? None() : c[2];
}

Value Attribute(const Value& item, const Value& path, Rendering& r) {
  if (IsUndefined(path) || As<None>(path) != nullptr) return item;
  if (const Text* text = As<Text>(path); text != nullptr && text->find(U'.') != Text::npos) {
    Fail("an attribute of an attribute is not known here");
  }
  return Item(item, path, r);
}

// What an item is compared by: its attribute, without case.
Value Key(const Value& item, const Value& attribute, const Value& with_case, Rendering& r) {
  Value key = Attribute(item, attribute, r);
  const Text* text = As<Text>(key);
  return text == nullptr || Truth(with_case) ? key : r.Make(ToCase(*text, /*upper=*/false));
}

Value Sort(Call& c) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : ToList(c[0], c.r)->items) keyed.emplace_back(Key(item, c[3], c[2], c.r), item);
  const bool reverse = Truth(c[1]);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? Less(b.first, a.first, c.r) : Less(a.first, b.first, c.r);
  });
  List sorted;
  for (auto& [key, item] : keyed) sorted.Add(std::move(item));
  return c.r.Make(std::move(sorted));
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

Value Unique(Call& c) {
  List kept, keys;
  for (const Value& item : ToList(c[0], c.r)->items) {
    const Value key = Key(item, c[2], c[1], c.r);
    const auto is = [&](const Value& seen) { return Equal(seen, key, c.r); };
    if (std::any_of(keys.items.begin(), keys.items.end(), is)) continue;
    keys.Add(key);
    kept.Add(item);
  }
  return c.r.Make(std::move(kept));
}

// The filter or test that an argument names, of one item and of the arguments behind that one.
Value Applied(std::string_view kind, const Value& item, const Call& c, size_t name) {
  const std::string full = Cat(kind, ToUtf8(TextAt(c, name)));
  const Builtin* builtin = FindBuiltin(full);
  if (builtin == nullptr) Fail("the ", full, " is not known here");
  Call applied{c.r, {item}};
  applied.plain.insert(applied.plain.end(), c.plain.begin() + static_cast<std::ptrdiff_t>(name) + 1, c.plain.end());
  return Run(*builtin, applied);
}

// select, reject, and the same by an attribute, which comes first; then the test's name and its arguments.
template <bool kWanted, bool kByAttribute>
Value Select(Call& c) {
  const size_t test = kByAttribute ? 2 : 1;
  if (c.plain.size() < test) Fail("the name of an attribute is missing");
  List kept;
  for (const Value& item : ToList(c[0], c.r)->items) {
    const Value value = kByAttribute ? Attribute(item, c[1], c.r) : item;
    if (Truth(c.plain.size() > test ? Applied("test ", value, c, test) : value) == kWanted) kept.Add(item);
  }
  return c.r.Make(std::move(kept));
}

Value Map(Call& c) {
  Value attribute, otherwise;
  for (const auto& [name, value] : c.named) {
    if (name != "attribute" && name != "default") Fail("the filter map takes no argument '", name, "'");
    (name == "default" ? otherwise : attribute) = value;
  }
  if (IsUndefined(attribute) && c.plain.size() < 2) Fail("map needs a filter or an attribute");
  List mapped;
  for (const Value& item : ToList(c[0], c.r)->items) {
    Value value = IsUndefined(attribute) ? Applied("filter ", item, c, 1) : Attribute(item, attribute, c.r);
    mapped.Add(IsUndefined(value) ? otherwise : std::move(value));
  }
  return c.r.Make(std::move(mapped));
}

Value Default(Call& c) {
  return IsUndefined(c[0]) || (Truth(c[2]) && !Truth(c[0])) ? c[1] : c[0];
}

Value Length(Call& c) {
  if (const Text* text = As<Text>(c[0])) return static_cast<int64_t>(text->size());
  if (const Dict* dict = As<Dict>(c[0])) return static_cast<int64_t>(dict->items.size());
  return static_cast<int64_t>(ToList(c[0], c.r)->items.size());
}

// ---- Texts.

Value Join(Call& c) {
  const Text separator = ToText(c[1], c.r);
  Text joined;
  const ListPtr list = ToList(c[0], c.r);
  for (const Value& item : list->items) {
    if (&item != &list->items.front()) joined += separator;
    joined += ToText(Attribute(item, c[2], c.r), c.r);
    c.r.Step(separator.size());
    c.r.FitText(joined.size());
  }
  return c.r.Make(std::move(joined));
}

template <bool kLeft, bool kRight>
Value Stripped(Call& c) {
  const Text text = ToText(c[0], c.r);
  const Text* chars = As<Text>(c[1]);
  c.r.Step(text.size() * (chars == nullptr ? 1 : chars->size()));
  return c.r.Make(Strip(text, chars, kLeft, kRight));
}

template <bool kUpper>
Value Cased(Call& c) {
  const Text text = ToText(c[0], c.r);
  c.r.Step(8 * text.size());
  return c.r.Make(ToCase(text, kUpper));
}

// Each word with a capital: of all of them, or of the first alone.
template <bool kAll>
Value Capitalized(Call& c) {
  const Text text = ToText(c[0], c.r);
  c.r.Step(32 * text.size());
  Text out;
  bool begins = true;
  for (const char32_t letter : text) {
    out += ToCase(Text(1, letter), begins);
    begins = kAll && (IsSpace(letter) || Text(U"-({[<").find(letter) != Text::npos);
  }
  return c.r.Make(std::move(out));
}

Value Replace(Call& c) {
  const Text text = ToText(c[0], c.r), old = ToText(c[1], c.r), fresh = ToText(c[2], c.r);
  if (old.empty()) Fail("what is replaced is empty");
  Text out;
  size_t at = 0;
  for (const size_t place : Places(text, old, IntAt(c, 3, kAny), c.r)) {
    out.append(text, at, place - at) += fresh;
    at = place + old.size();
    c.r.Step(fresh.size());
    c.r.FitText(out.size());
  }
  return c.r.Make(out.append(text, at));
}

Value Split(Call& c) {
  const Text& text = *As<Text>(c[0]);
  const bool at_space = IsUndefined(c[1]) || As<None>(c[1]) != nullptr;
  const int64_t most = IntAt(c, 2, kAny);
  if (at_space && most != kAny) Fail("split with a limit needs a separator");
  if (!at_space && TextAt(c, 1).empty()) Fail("the separator is empty");
  List parts;
  if (at_space) {
    const auto space = [](char32_t letter) { return IsSpace(letter); };
    for (auto at = std::find_if_not(text.begin(), text.end(), space); at != text.end();) {
      const auto end = std::find_if(at, text.end(), space);
      parts.Add(c.r.Make(Text(at, end)));
      at = std::find_if_not(end, text.end(), space);
    }
    return c.r.Make(std::move(parts));
  }
  size_t at = 0;
  for (const size_t place : Places(text, TextAt(c, 1), most, c.r)) {
    parts.Add(c.r.Make(text.substr(at, place - at)));
    at = place + TextAt(c, 1).size();
  }
  parts.Add(c.r.Make(text.substr(at)));
  return c.r.Make(std::move(parts));
}

template <bool kBegin>
Value HasEnd(Call& c) {
  const Text& text = *As<Text>(c[0]);
  const auto is = [&](const Value& part) {
    if (As<Text>(part) == nullptr) Fail("an argument must be a string, and ", Describe(part));
    c.r.Step(As<Text>(part)->size());
    return kBegin ? text.starts_with(*As<Text>(part)) : text.ends_with(*As<Text>(part));
  };
  const List* list = As<List>(c[1]);
  return list == nullptr ? is(c[1]) : std::any_of(list->items.begin(), list->items.end(), is);
}

Value Indent(Call& c) {
  const Text text = ToText(c[0], c.r);
  c.r.FitText(IntAt(c, 1, 4));
  const Text indent = As<Text>(c[1]) != nullptr ? *As<Text>(c[1]) : Text(IntAt(c, 1, 4), U' ' | kOwn);
  Text out = Truth(c[2]) ? indent : Text();
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = i > 0 && text[i - 1] == (U'\n');
    if (begins && (text[i] != U'\n' || Truth(c[3]))) out += indent;
    out += text[i];
    c.r.FitText(out.size());
  }
  c.r.Step(out.size());
  return c.r.Make(std::move(out));
}

Value ToWhole(Call& c) {
  int64_t whole = 0;
  const Text* text = As<Text>(c[0]);
  if (text != nullptr && absl::SimpleAtoi(ToUtf8(*text), &whole)) return whole;
  if (const double* real = As<double>(c[0]); real != nullptr && std::abs(*real) < 9e18) return int64_t(*real);
  if (const auto number = ToInt(c[0])) return *number;
  return IsUndefined(c[1]) ? Value(int64_t{0}) : c[1];
}

// ---- Functions.

Value Range(Call& c) {
  constexpr size_t kMost = 100'000;  // as Jinja's sandbox
  int64_t numbers[3] = {0, 0, 1};
  if (c.plain.empty() || c.plain.size() > 3) Fail("range takes one to three integers");
  for (size_t i = 0; i < c.plain.size(); ++i) {
    if (!ToInt(c[i])) Fail("range takes integers");
    numbers[c.plain.size() == 1 ? 1 : i] = *ToInt(c[i]);
  }
  const auto [from, to, step] = numbers;
  if (step == 0) Fail("the step of range is 0");
  List list;
  for (__int128 i = from; step > 0 ? i < to : i > to; i += step) {
    if (list.items.size() >= kMost) Fail("a range of more than ", kMost, " numbers");
    list.Add(static_cast<int64_t>(i));
  }
  c.r.Step(0, list.items.size());
  return c.r.Make(std::move(list));
}

Dict DictOf(Call& c) {
  Dict dict;
  if (!c.plain.empty()) {
    if (As<Dict>(c[0]) == nullptr) Fail("it takes a dict, or arguments with names");
    c.r.Step(0, 8 * As<Dict>(c[0])->items.size());
    dict = *As<Dict>(c[0]);
  }
  for (auto& [name, value] : c.named) dict.Set(std::get<TextPtr>(c.r.Make(FromUtf8(name, false))), value);
  return dict;
}

Value Raise(Call& c) {
  std::string shown;  // without what the caller wrote: errors are logged
  for (const TextPart& part : Parts(ToText(c[0], c.r))) shown += part.parse_special ? part.text : "...";
  throw Failure{absl::InvalidArgumentError(Cat("the chat template says: ", shown)), /*complete=*/true};
}

Value Now(Call& c) {
  const std::tm now = absl::ToTM(c.r.now, absl::UTCTimeZone());
  char text[256];
  const size_t size = std::strftime(text, sizeof(text), ToUtf8(TextAt(c, 0)).c_str(), &now);
  return c.r.Make(FromUtf8({text, size}, /*own=*/false));
}

constexpr Builtin kBuiltins[] = {
    {"function dict", "*", [](Call& c) { return c.r.Make(DictOf(c)); }},
    {"function namespace", "*", [](Call& c) -> Value { return c.r.MakeNamespace(DictOf(c)); }},
    {"function raise_exception", "message", Raise},
    {"function range", "*", Range},
    {"function strftime_now", "format", Now},

    {"test boolean", "value", Holds<bool>},
    {"test defined", "value", [](Call& c) -> Value { return !IsUndefined(c[0]); }},
    {"test eq", "value other", [](Call& c) -> Value { return Equal(c[0], c[1], c.r); }},
    {"test equalto", "value other", [](Call& c) -> Value { return Equal(c[0], c[1], c.r); }},
    {"test false", "value", [](Call& c) -> Value { return As<bool>(c[0]) != nullptr && !Truth(c[0]); }},
    {"test in", "value seq", [](Call& c) { return Contains(c[0], c[1], c.r); }},
    {"test iterable", "value", HasItems},
    {"test mapping", "value", Holds<Dict>},
    {"test ne", "value other", [](Call& c) -> Value { return !Equal(c[0], c[1], c.r); }},
    {"test none", "value", Holds<None>},
    {"test number", "value", [](Call& c) -> Value { return ToDouble(c[0]).has_value(); }},
    {"test sequence", "value", HasItems},
    {"test string", "value", Holds<Text>},
    {"test true", "value", [](Call& c) -> Value { return As<bool>(c[0]) != nullptr && Truth(c[0]); }},
    {"test undefined", "value", Holds<Undefined>},

    {"filter capitalize", "s", Capitalized<false>},
    {"filter count", "value", Length},
    {"filter d", "value default_value boolean", Default},
    {"filter default", "value default_value boolean", Default},
    {"filter dictsort", "value case_sensitive reverse", DictSort},
    {"filter first", "seq", [](Call& c) { return Item(ToList(c[0], c.r), int64_t{0}, c.r); }},
    {"filter indent", "s width first blank", Indent},
    {"filter int", "value default", ToWhole},
    {"filter items", "value", Items},
    {"filter join", "value d attribute", Join},
    {"filter last", "seq", [](Call& c) { return Item(ToList(c[0], c.r), int64_t{-1}, c.r); }},
    {"filter length", "value", Length},
    {"filter list", "value", [](Call& c) -> Value { return ToList(c[0], c.r); }},
    {"filter lower", "s", Cased<false>},
    {"filter map", "*", Map},
    {"filter max", "value case_sensitive attribute", Extreme<true>},
    {"filter min", "value case_sensitive attribute", Extreme<false>},
    {"filter reject", "*", Select<false, false>},
    {"filter rejectattr", "*", Select<false, true>},
    {"filter replace", "s old new count", Replace},
    {"filter reverse", "value", [](Call& c) { return Slice(c[0], None(), None(), int64_t{-1}, c.r); }},
    {"filter safe", "value", [](Call& c) { return c.r.Make(ToText(c[0], c.r)); }},
    {"filter select", "*", Select<true, false>},
    {"filter selectattr", "*", Select<true, true>},
    {"filter sort", "value reverse case_sensitive attribute", Sort},
    {"filter string", "value", [](Call& c) { return c.r.Make(ToText(c[0], c.r)); }},
    {"filter title", "s", Capitalized<true>},
    {"filter tojson", "value ensure_ascii indent sort_keys", ToJson},
    {"filter trim", "value chars", Stripped<true, true>},
    {"filter unique", "value case_sensitive attribute", Unique},
    {"filter upper", "s", Cased<true>},

    {"capitalize of a string", "self", Capitalized<false>},
    {"endswith of a string", "self suffix", HasEnd<false>},
    {"lower of a string", "self", Cased<false>},
    {"lstrip of a string", "self chars", Stripped<true, false>},
    {"replace of a string", "self old new count", Replace},
    {"rstrip of a string", "self chars", Stripped<false, true>},
    {"split of a string", "self sep maxsplit", Split},
    {"startswith of a string", "self prefix", HasEnd<true>},
    {"strip of a string", "self chars", Stripped<true, true>},
    {"title of a string", "self", Capitalized<true>},
    {"upper of a string", "self", Cased<true>},

    {"get of a dict", "self key default", Get},
    {"items of a dict", "self", Items},
    {"keys of a dict", "self", [](Call& c) -> Value { return ToList(c[0], c.r); }},
    {"values of a dict", "self", Values},
};

}  // namespace

const Builtin* FindBuiltin(std::string_view name) {
  const auto is = [name](const Builtin& builtin) { return builtin.name == name; };
  const auto* found = std::find_if(std::begin(kBuiltins), std::end(kBuiltins), is);
  return found == std::end(kBuiltins) ? nullptr : found;
}

Value Run(const Builtin& builtin, Call& call) {
  if (builtin.parameters != "*") call.Bind(absl::StrSplit(std::string(builtin.parameters), ' '), builtin.name);
  // About what it takes to look at all of what it is applied to; an item of a dict is two values.
  constexpr size_t kOfDictItem = 8;
  if (!call.plain.empty()) {
    const Text* text = As<Text>(call[0]);
    const List* list = As<List>(call[0]);
    const Dict* dict = As<Dict>(call[0]);
    call.r.Step(text == nullptr ? 0 : text->size(), list != nullptr   ? list->items.size()
                                                    : dict != nullptr ? kOfDictItem * dict->items.size()
                                                                      : 0);
  }
  return builtin.run(call);
}

}  // namespace runahead::jinja
