#include "server/tokenizer/jinja/builtins.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace runahead::jinja {
namespace {

constexpr int64_t kAll = INT64_MAX;

const Text& TextAt(const Call& c, size_t i) {
  if (As<Text>(c[i]) == nullptr) Fail("an argument must be a string, and ", Describe(c[i]));
  return *As<Text>(c[i]);
}

// ---- Tests.

template <typename T>
Value Holds(Call& c) {
  return As<T>(c[0]) != nullptr;
}

template <bool kWanted>
Value IsBool(Call& c) {
  return As<bool>(c[0]) != nullptr && Truth(c[0]) == kWanted;
}

template <int64_t kRest>
Value LeavesOfTwo(Call& c) {
  if (!ToInt(c[0])) Fail("even and odd are of integers, not of ", Describe(c[0]));
  return (*ToInt(c[0]) % 2 == 0) == (kRest == 0);
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
  List items;
  for (const auto& [key, value] : dict->items) {
    Call pair{c.r, {key, value}};
    items.Add(MakeTuple(pair));
  }
  return c.r.Make(std::move(items));
}

Value Values(Call& c) {
  List values;
  for (const auto& item : As<Dict>(c[0])->items) values.Add(item.second);
  return c.r.Make(std::move(values));
}

Value Keys(Call& c) {
  return ToList(c[0], c.r);
}

// "a.b" of an item, its index, or itself.
Value Attribute(Value item, const Value& path, Rendering& r) {
  if (IsUndefined(path) || As<None>(path) != nullptr) return item;
  std::vector<Value> steps = {path};
  if (const Text* text = As<Text>(path)) {
    steps.clear();
    for (const auto& name : absl::StrSplit(ToUtf8(*text), '.'))
      steps.push_back(r.Make(FromUtf8(std::string(name), false)));
  }
  for (const Value& step : steps) {
    Call of{r, {item, step}};
    item = Item(of);
  }
  return item;
}

template <int64_t kIndex>
Value At(Call& c) {
  Call item{c.r, {ToList(c[0], c.r), kIndex}};
  return Item(item);
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
  std::stable_sort(keyed.begin(), keyed.end(), [&, reverse = Truth(c[1])](const auto& a, const auto& b) {
    return reverse ? Less(b.first, a.first, c.r) : Less(a.first, b.first, c.r);
  });
  List sorted;
  for (const auto& [key, item] : keyed) sorted.Add(item);
  return c.r.Make(std::move(sorted));
}

Value DictSort(Call& c) {
  Call sort{c.r, {Items(c), c[2], c[1], int64_t{0}}};
  return Sort(sort);
}

template <bool kMost>
Value Extreme(Call& c) {
  Call sort{c.r, {c[0], kMost, c[1], c[2]}};
  Call first{c.r, {Sort(sort)}};
  return At<0>(first);
}

// The filter or test that an argument names, of one item and of the arguments behind that one.
Value Applied(Builtin::Kind kind, const Value& item, const Call& c, size_t at) {
  const std::string name = ToUtf8(TextAt(c, at));
  const Builtin* builtin = FindBuiltin(kind, name);
  if (builtin == nullptr) Fail("the filter or test '", name, "' is not known here");
  Call applied{c.r, {item}};
  applied.plain.insert(applied.plain.end(), c.plain.begin() + static_cast<std::ptrdiff_t>(at) + 1, c.plain.end());
  return RunBuiltin(*builtin, applied);
}

// select, reject, and the same by an attribute, which comes first; then the test's name and its arguments.
template <bool kWanted, bool kByAttribute>
Value Select(Call& c) {
  const size_t test = kByAttribute ? 2 : 1;
  if (c.plain.size() < test) Fail("the name of an attribute is missing");
  List kept;
  if (!Truth(c[0])) return c.r.Make(std::move(kept));
  const ListPtr list = ToList(c[0], c.r);
  for (const Value& item : list->items) {
    const Value value = kByAttribute ? Attribute(item, c[1], c.r) : item;
    if (Truth(c.plain.size() > test ? Applied(Builtin::kTest, value, c, test) : value) == kWanted) kept.Add(item);
  }
  return c.r.Make(std::move(kept));
}

Value Map(Call& c) {
  Value attribute, otherwise;
  for (const auto& [name, value] : c.named) {
    if (name != "attribute" && name != "default") Fail("'map' takes no argument '", name, "'");
    (name == "default" ? otherwise : attribute) = value;
  }
  if (IsUndefined(attribute) && c.plain.size() < 2) Fail("map needs a filter or an attribute");
  List mapped;
  if (!Truth(c[0])) return c.r.Make(std::move(mapped));
  const ListPtr list = ToList(c[0], c.r);
  for (const Value& item : list->items) {
    const Value value =
        IsUndefined(attribute) ? Applied(Builtin::kFilter, item, c, 1) : Attribute(item, attribute, c.r);
    mapped.Add(IsUndefined(value) ? otherwise : value);
  }
  return c.r.Make(std::move(mapped));
}

Value Length(Call& c) {
  return static_cast<int64_t>(IsUndefined(c[0]) ? 0 : SizeOf(c[0]) ? *SizeOf(c[0]) : ToList(c[0], c.r)->items.size());
}

Value Reversed(Call& c) {
  if (const Text* text = As<Text>(c[0])) return c.r.Make(Text(text->rbegin(), text->rend()));
  const ListPtr list = ToList(c[0], c.r);
  List reversed;
  for (auto item = list->items.rbegin(); item != list->items.rend(); ++item) reversed.Add(*item);
  return c.r.Make(std::move(reversed));
}

Value Default(Call& c) {
  return IsUndefined(c[0]) || (Truth(c[2]) && !Truth(c[0])) ? c[1] : c[0];
}

// ---- Texts.

Value String(Call& c) {
  return c.r.Make(ToText(c[0], c.r));
}

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

// With a capital for each word, or for the first alone.
template <bool kAll>
Value Capitalized(Call& c) {
  const Text text = ToText(c[0], c.r);
  c.r.Step(32 * text.size());
  Text out;
  for (bool begins = true; const char32_t letter : text) {
    out += ToCase(Text(1, letter), begins);
    begins = kAll && (IsSpace(letter) || Text(U"-({[<").find(letter) != Text::npos);
  }
  return c.r.Make(std::move(out));
}

Value Replace(Call& c) {
  const Text text = ToText(c[0], c.r), old = ToText(c[1], c.r), fresh = ToText(c[2], c.r);
  if (old.empty()) Fail("what is to be replaced is empty");
  Text out;
  size_t at = 0;
  for (const size_t place : Places(text, old, ToInt(c[3]).value_or(kAll), c.r)) {
    out.append(text, at, place - at) += fresh;
    at = place + old.size();
    c.r.Step(fresh.size());
    c.r.FitText(out.size());
  }
  return c.r.Make(out.append(text, at));
}

Value Split(Call& c) {
  const Text& text = TextAt(c, 0);
  List parts;
  const auto add = [&](auto from, auto to) { parts.Add(c.r.Make(Text(from, to))); };
  if (IsUndefined(c[1])) {
    if (!IsUndefined(c[2])) Fail("split with a limit needs a separator");
    for (auto at = std::find_if_not(text.begin(), text.end(), IsSpace); at != text.end();) {
      const auto end = std::find_if(at, text.end(), IsSpace);
      add(at, end);
      at = std::find_if_not(end, text.end(), IsSpace);
    }
    return c.r.Make(std::move(parts));
  }
  if (TextAt(c, 1).empty()) Fail("the separator is empty");
  auto at = text.begin();
  for (const size_t place : Places(text, TextAt(c, 1), ToInt(c[2]).value_or(kAll), c.r)) {
    add(at, text.begin() + static_cast<std::ptrdiff_t>(place));
    at = text.begin() + static_cast<std::ptrdiff_t>(place + TextAt(c, 1).size());
  }
  add(at, text.end());
  return c.r.Make(std::move(parts));
}

template <bool kBegin>
Value HasEnd(Call& c) {
  const Text &text = TextAt(c, 0), &part = TextAt(c, 1);
  return kBegin ? text.starts_with(part) : text.ends_with(part);
}

// What Python's splitlines takes for the end of a line.
bool EndsLine(char32_t c) {
  c &= ~kOwn;
  return (c >= U'\n' && c <= U'\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

Value Indent(Call& c) {
  Text text = ToText(c[0], c.r);
  if (!text.empty() && Text::traits_type::eq(text.back(), U'\r'))
    text.pop_back();  // Jinja adds a line end: they are one
  const int64_t width = std::max<int64_t>(ToInt(c[1]).value_or(4), 0);
  c.r.FitText(static_cast<size_t>(width));
  const Text indent = As<Text>(c[1]) != nullptr ? *As<Text>(c[1]) : Text(width, U' ' | kOwn);
  Text out = Truth(c[2]) ? indent : Text();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, U"\r\n") == 0) continue;
    if (!EndsLine(text[i])) {
      out += text[i];
      continue;
    }
    out += U'\n' | kOwn;
    const bool empty = i + 1 == text.size() || EndsLine(text[i + 1]);
    if (!empty || Truth(c[3])) out += indent;
    c.r.FitText(out.size());
  }
  c.r.Step(out.size());
  return c.r.Make(std::move(out));
}

Value Whole(Call& c) {
  int64_t whole = 0;
  double real = ToDouble(c[0]).value_or(NAN);
  if (ToInt(c[0])) return *ToInt(c[0]);
  if (const Text* text = As<Text>(c[0])) {
    if (absl::SimpleAtoi(ToUtf8(*text), &whole)) return whole;
    if (!absl::SimpleAtod(ToUtf8(*text), &real)) real = NAN;
  }
  if (std::abs(real) < 9e18) return static_cast<int64_t>(real);
  return IsUndefined(c[1]) ? Value(int64_t{0}) : c[1];
}

// ---- Functions.

Value Range(Call& c) {
  constexpr size_t kMost = 100'000;  // as Jinja's sandbox
  if (IsUndefined(c[1])) c.plain = {int64_t{0}, c[0], c[2]};
  const auto from = ToInt(c[0]), to = ToInt(c[1]), step = IsUndefined(c[2]) ? int64_t{1} : ToInt(c[2]);
  if (!from || !to || !step || *step == 0) Fail("range takes integers, and a step that is not 0");
  List list;
  for (__int128 i = *from; *step > 0 ? i < *to : i > *to; i += *step) {
    if (list.items.size() >= kMost) Fail("a range of more than ", kMost, " numbers");
    list.Add(static_cast<int64_t>(i));
  }
  c.r.Step(0, list.items.size());
  return c.r.Make(std::move(list));
}

Value Namespace(Call& c) {
  Dict members;
  if (!c.plain.empty()) Fail("namespace takes arguments with names only");
  for (const auto& [name, value] : c.named) members.Set(FromUtf8(name, /*own=*/true), value);
  return c.r.MakeNamespace(std::move(members));
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
    {"namespace", Builtin::kFunction, "*", Namespace},
    {"raise_exception", Builtin::kFunction, "message", Raise},
    {"range", Builtin::kFunction, "start stop step", Range},
    {"strftime_now", Builtin::kFunction, "format", Now},

    {"boolean", Builtin::kTest, "value", Holds<bool>},
    {"defined", Builtin::kTest, "value", [](Call& c) -> Value { return !IsUndefined(c[0]); }},
    {"eq", Builtin::kTest, "a b", [](Call& c) -> Value { return Equal(c[0], c[1], c.r); }},
    {"equalto", Builtin::kTest, "a b", [](Call& c) -> Value { return Equal(c[0], c[1], c.r); }},
    {"false", Builtin::kTest, "value", IsBool<false>},
    {"even", Builtin::kTest, "value", LeavesOfTwo<0>},
    {"float", Builtin::kTest, "value", Holds<double>},
    {"in", Builtin::kTest, "value seq", Contains},
    {"integer", Builtin::kTest, "value", Holds<int64_t>},
    {"iterable", Builtin::kTest, "value", HasItems},
    {"mapping", Builtin::kTest, "value", Holds<Dict>},
    {"ne", Builtin::kTest, "a b", [](Call& c) -> Value { return !Equal(c[0], c[1], c.r); }},
    {"none", Builtin::kTest, "value", Holds<None>},
    {"number", Builtin::kTest, "value", [](Call& c) -> Value { return ToDouble(c[0]).has_value(); }},
    {"odd", Builtin::kTest, "value", LeavesOfTwo<1>},
    {"sequence", Builtin::kTest, "value", HasItems},
    {"string", Builtin::kTest, "value", Holds<Text>},
    {"true", Builtin::kTest, "value", IsBool<true>},
    {"undefined", Builtin::kTest, "value", Holds<Undefined>},

    {"count", Builtin::kFilter, "value", Length},
    {"d", Builtin::kFilter, "value default_value boolean", Default},
    {"default", Builtin::kFilter, "value default_value boolean", Default},
    {"dictsort", Builtin::kFilter, "value case_sensitive reverse", DictSort},
    {"first", Builtin::kFilter, "seq", At<0>},
    {"get", Builtin::kOfDict, "self key default", Get},
    {"int", Builtin::kFilter, "value default", Whole},
    {"items", Builtin::kFilter | Builtin::kOfDict, "value", Items},
    {"keys", Builtin::kOfDict, "self", Keys},
    {"last", Builtin::kFilter, "seq", At<-1>},
    {"length", Builtin::kFilter, "value", Length},
    {"list", Builtin::kFilter, "value", Keys},
    {"map", Builtin::kFilter, "*", Map},
    {"max", Builtin::kFilter, "value case_sensitive attribute", Extreme<true>},
    {"min", Builtin::kFilter, "value case_sensitive attribute", Extreme<false>},
    {"reject", Builtin::kFilter, "*", Select<false, false>},
    {"rejectattr", Builtin::kFilter, "*", Select<false, true>},
    {"reverse", Builtin::kFilter, "value", Reversed},
    {"select", Builtin::kFilter, "*", Select<true, false>},
    {"selectattr", Builtin::kFilter, "*", Select<true, true>},
    {"sort", Builtin::kFilter, "value reverse case_sensitive attribute", Sort},
    {"values", Builtin::kOfDict, "self", Values},

    {"capitalize", Builtin::kFilter | Builtin::kOfText, "s", Capitalized<false>},
    {"endswith", Builtin::kOfText, "self suffix", HasEnd<false>},
    {"indent", Builtin::kFilter, "s width first blank", Indent},
    {"join", Builtin::kFilter, "value d attribute", Join},
    {"lower", Builtin::kFilter | Builtin::kOfText, "s", Cased<false>},
    {"lstrip", Builtin::kOfText, "self chars", Stripped<true, false>},
    {"replace", Builtin::kFilter | Builtin::kOfText, "s old new count", Replace},
    {"rstrip", Builtin::kOfText, "self chars", Stripped<false, true>},
    {"safe", Builtin::kFilter, "value", String},
    {"split", Builtin::kOfText, "self sep maxsplit", Split},
    {"startswith", Builtin::kOfText, "self prefix", HasEnd<true>},
    {"string", Builtin::kFilter, "value", String},
    {"strip", Builtin::kOfText, "self chars", Stripped<true, true>},
    {"title", Builtin::kFilter, "s", Capitalized<true>},
    {"tojson", Builtin::kFilter, "value ensure_ascii indent sort_keys", ToJson},
    {"trim", Builtin::kFilter, "value chars", Stripped<true, true>},
    {"upper", Builtin::kFilter | Builtin::kOfText, "s", Cased<true>},
};

}  // namespace

const Builtin* FindBuiltin(Builtin::Kind kind, std::string_view name) {
  const auto is = [=](const Builtin& builtin) { return (builtin.kinds & kind) != 0 && builtin.name == name; };
  const auto* found = std::find_if(std::begin(kBuiltins), std::end(kBuiltins), is);
  return found == std::end(kBuiltins) ? nullptr : found;
}

Value RunBuiltin(const Builtin& builtin, Call& call) {
  if (builtin.parameters != "*") call.Bind(absl::StrSplit(std::string(builtin.parameters), ' '), builtin.name);
  if (!call.plain.empty()) {  // about what it takes to look at all of what it is applied to
    const size_t size = SizeOf(call[0]).value_or(0);
    As<Text>(call[0]) != nullptr ? call.r.Step(size) : call.r.Step(0, As<Dict>(call[0]) != nullptr ? 8 * size : size);
  }
  return builtin.run(call);
}

}  // namespace runahead::jinja
