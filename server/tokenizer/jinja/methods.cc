// The tests, functions and methods.
#include <algorithm>
#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "server/tokenizer/jinja/builtins.h"

namespace runahead::jinja {
namespace {

using Table = absl::flat_hash_map<std::string_view, Builtin>;

const Builtin* FindIn(const Table& table, std::string_view name) {
  const auto at = table.find(name);
  return at == table.end() ? nullptr : &at->second;
}

// ---- Tests.

bool IsNumber(const Value& value) {
  double number = 0;
  return ToDouble(value, &number);
}

bool IsCase(const Value& value, bool upper, Rendering& r) {
  const Text text = ToText(value, r);
  const Text same = ToCase(text, upper), other = ToCase(text, !upper);
  return same.view() == text.view() && other.view() != text.view();
}

template <int64_t kRest>
Value HasRest(Call& c) {
  int64_t number = 0;
  return ToInt(c.self, &number) ? Value(std::abs(number % 2) == kRest)
                                : c.r.Fail("it is no integer: ", Describe(c.self));
}

Value DivisibleBy(Call& c) {
  int64_t number = 0, by = 0;
  if (!ToInt(c.self, &number) || !ToInt(c[0], &by) || by == 0) return c.r.Fail("divisibleby needs two integers");
  return by == -1 || number % by == 0;
}

bool HasItems(const Value& v) {
  return AsText(v) != nullptr || As<ListPtr>(v) != nullptr || As<DictPtr>(v) != nullptr || IsUndefined(v);
}

Value IsEqual(Call& c) {
  return Equal(c.self, c[0], c.r);
}
Value IsUnequal(Call& c) {
  return !Equal(c.self, c[0], c.r);
}
Value IsLess(Call& c) {
  return Less(c.self, c[0], c.r);
}
Value IsGreater(Call& c) {
  return Less(c[0], c.self, c.r);
}
Value IsAtMost(Call& c) {
  return !Less(c[0], c.self, c.r);
}
Value IsAtLeast(Call& c) {
  return !Less(c.self, c[0], c.r);
}

const Table& Tests() {
  static const Table kTests = {
      {"boolean", {"", [](Call& c) -> Value { return As<bool>(c.self) != nullptr; }}},
      {"callable",
       {"",
        [](Call& c) -> Value {
          return As<std::shared_ptr<const Function>>(c.self) != nullptr || As<const Macro*>(c.self) != nullptr;
        }}},
      {"defined", {"", [](Call& c) -> Value { return !IsUndefined(c.self); }}},
      {"divisibleby", {"num", DivisibleBy}},
      {"eq", {"other", IsEqual}},
      {"equalto", {"other", IsEqual}},
      {"==", {"other", IsEqual}},
      {"even", {"", HasRest<0>}},
      {"false", {"", [](Call& c) -> Value { return As<bool>(c.self) != nullptr && !Truth(c.self); }}},
      {"filter", {"", [](Call& c) -> Value { return AsText(c.self) != nullptr && HasFilter(AsText(c.self)->view()); }}},
      {"float", {"", [](Call& c) -> Value { return As<double>(c.self) != nullptr; }}},
      {"ge", {"other", IsAtLeast}},
      {">=", {"other", IsAtLeast}},
      {"greaterthan", {"other", IsGreater}},
      {"gt", {"other", IsGreater}},
      {">", {"other", IsGreater}},
      {"in", {"seq", [](Call& c) -> Value { return Contains(c[0], c.self, c.r); }}},
      {"integer", {"", [](Call& c) -> Value { return As<int64_t>(c.self) != nullptr; }}},
      {"iterable", {"", [](Call& c) -> Value { return HasItems(c.self); }}},
      {"le", {"other", IsAtMost}},
      {"<=", {"other", IsAtMost}},
      {"lessthan", {"other", IsLess}},
      {"lower", {"", [](Call& c) -> Value { return IsCase(c.self, /*upper=*/false, c.r); }}},
      {"lt", {"other", IsLess}},
      {"<", {"other", IsLess}},
      {"mapping", {"", [](Call& c) -> Value { return As<DictPtr>(c.self) != nullptr; }}},
      {"ne", {"other", IsUnequal}},
      {"!=", {"other", IsUnequal}},
      {"none", {"", [](Call& c) -> Value { return As<None>(c.self) != nullptr; }}},
      {"number", {"", [](Call& c) -> Value { return IsNumber(c.self); }}},
      {"odd", {"", HasRest<1>}},
      {"sameas",
       {"other", [](Call& c) -> Value { return c.self.index() == c[0].index() && Equal(c.self, c[0], c.r); }}},
      {"sequence", {"", [](Call& c) -> Value { return HasItems(c.self); }}},
      {"string", {"", [](Call& c) -> Value { return AsText(c.self) != nullptr; }}},
      {"test", {"", [](Call& c) -> Value { return AsText(c.self) != nullptr && HasTest(AsText(c.self)->view()); }}},
      {"true", {"", [](Call& c) -> Value { return As<bool>(c.self) != nullptr && Truth(c.self); }}},
      {"undefined", {"", [](Call& c) -> Value { return IsUndefined(c.self); }}},
      {"upper", {"", [](Call& c) -> Value { return IsCase(c.self, /*upper=*/true, c.r); }}},
  };
  return kTests;
}

// ---- Functions.

Value Range(Call& c) {
  constexpr int64_t kMost = 100'000;  // as Jinja's sandbox
  int64_t numbers[3] = {0, 0, 1};
  const std::vector<Value>& given = c.given.plain;
  if (given.empty() || given.size() > 3) return c.r.Fail("range takes one to three integers");
  for (size_t i = 0; i < given.size(); ++i) {
    if (!ToInt(given[i], &numbers[given.size() == 1 ? 1 : i])) return c.r.Fail("range takes integers");
  }
  const auto [from, to, step] = numbers;
  if (step == 0) return c.r.Fail("the step of range is 0");
  List list;
  for (__int128 i = from; step > 0 ? i < to : i > to; i += step) {
    if (list.items.size() >= kMost) return c.r.Fail("a range of more than ", kMost, " numbers");
    list.items.emplace_back(static_cast<int64_t>(i));
  }
  return c.r.Step(0, list.items.size()) ? c.r.Make(std::move(list)) : Undefined();
}

Value MakeDict(Call& c) {
  Dict dict;
  if (!c.given.plain.empty()) {
    const DictPtr* from = As<DictPtr>(c[0]);
    if (from == nullptr) return c.r.Fail("dict takes a dict, or arguments with names");
    if (!c.r.Step(0, 8 * (*from)->items.size())) return Undefined();
    dict = **from;
  }
  for (auto& [name, value] : c.given.named) dict.Set(c.r.Make(name), value);
  return c.r.Make(std::move(dict));
}

Value MakeNamespace(Call& c) {
  const Value first = MakeDict(c);
  Dict* space = c.r.ok() ? c.r.MakeNamespace() : nullptr;
  if (space == nullptr) return Undefined();
  *space = **As<DictPtr>(first);
  return space;
}

Value Now(Call& c) {
  const std::tm now = absl::ToTM(c.r.now(), absl::UTCTimeZone());
  char text[256];
  const std::string format(TextArgument(c, 0).view());
  return c.r.Make(std::string_view(text, std::strftime(text, sizeof(text), format.c_str(), &now)));
}

const Table& Functions() {
  static const Table kFunctions = {
      {"dict", {"*", MakeDict}},
      {"namespace", {"*", MakeNamespace}},
      {"raise_exception", {"message", [](Call& c) { return c.r.Raise(ToText(c[0], c.r)); }}},
      {"range", {"*", Range}},
      {"strftime_now", {"format", Now}},
  };
  return kFunctions;
}

// ---- Methods.

const Text& Self(const Call& c) {
  return *AsText(c.self);
}

template <bool kLeft, bool kRight>
Value Stripped(Call& c) {
  const Text* chars = AsText(c[0]);
  if (!c.r.Step(Self(c).size() * (chars == nullptr ? 1 : chars->size()))) return Undefined();
  return c.r.Make(Strip(Self(c), chars == nullptr ? std::nullopt : std::optional(chars->view()), kLeft, kRight));
}

// At white space, which is none of the parts' own.
void SplitAtSpace(const Text& text, int64_t most, Rendering& r, List& parts) {
  const Text rest = Strip(text, std::nullopt, true, false);
  size_t begin = 0, bytes = 0;
  bool inside = false;
  const auto add = [&](size_t end) { parts.items.push_back(r.Make(rest.Cut(begin, end - begin))); };
  for (size_t at = 0; at < rest.size() && r.ok(); at += bytes) {
    const bool space = IsSpace(CharAt(rest.view(), at, &bytes));
    if (space && inside) add(at);
    if (!space && !inside) begin = at;
    inside = !space;
    if (inside && static_cast<int64_t>(parts.items.size()) == most) break;
  }
  if (inside) add(rest.size());
}

template <bool kFromRight>
Value Split(Call& c) {
  const Text& text = Self(c);
  int64_t most = -1;
  ToInt(c[1], &most);
  List parts;
  if (!c.r.Step(text.size(), 0)) return Undefined();
  if (IsUndefined(c[0]) || As<None>(c[0]) != nullptr) {
    if (kFromRight && most >= 0) return c.r.Fail("rsplit with a limit needs a separator");
    SplitAtSpace(text, most, c.r, parts);
    return c.r.Make(std::move(parts));
  }
  const std::string_view separator = TextArgument(c, 0).view();
  if (separator.empty()) return c.r.Fail("the separator is empty");
  size_t begin = 0, end = text.size();
  // Searching from the right may look at each byte once for each of the separator's.
  if (kFromRight && !c.r.Step(text.size() * std::min<size_t>(separator.size(), 1 << 16))) return Undefined();
  for (; most != 0 && c.r.Step(); --most) {
    const size_t at = kFromRight ? text.view().substr(0, end).rfind(separator) : Find(text.view(), separator, begin);
    if (at == std::string_view::npos) break;
    parts.items.push_back(c.r.Make(kFromRight ? text.Cut(at + separator.size(), end - at - separator.size())
                                              : text.Cut(begin, at - begin)));
    (kFromRight ? end : begin) = kFromRight ? at : at + separator.size();
  }
  parts.items.push_back(c.r.Make(text.Cut(begin, end - begin)));
  if (kFromRight) std::reverse(parts.items.begin(), parts.items.end());
  return c.r.Make(std::move(parts));
}

bool HasEnd(std::string_view text, std::string_view part, bool at_begin) {
  if (part.size() > text.size()) return false;
  return (at_begin ? text.substr(0, part.size()) : text.substr(text.size() - part.size())) == part;
}

template <bool kBegin>
Value HasEndMethod(Call& c) {
  if (const ListPtr* list = As<ListPtr>(c[0])) {
    for (const Value& item : (*list)->items) {
      const Text* part = AsText(item);
      if (c.r.Step() && part != nullptr && HasEnd(Self(c).view(), part->view(), kBegin)) return true;
    }
    return false;
  }
  return HasEnd(Self(c).view(), TextArgument(c, 0).view(), kBegin);
}

template <bool kBegin>
Value WithoutEnd(Call& c) {
  const std::string_view part = TextArgument(c, 0).view();
  if (!HasEnd(Self(c).view(), part, kBegin)) return c.self;
  return c.r.Make(Self(c).Cut(kBegin ? part.size() : 0, Self(c).size() - part.size()));
}

Value FindMethodOf(Call& c) {
  const size_t at = Find(Self(c).view(), TextArgument(c, 0).view(), 0);
  if (at == std::string_view::npos) return int64_t{-1};
  return static_cast<int64_t>(CountChars(Self(c).view().substr(0, at)));
}

Value CountMethod(Call& c) {
  const std::string_view text = Self(c).view(), part = TextArgument(c, 0).view();
  if (part.empty()) return static_cast<int64_t>(CountChars(text)) + 1;
  int64_t count = 0;
  for (size_t at = Find(text, part, 0); at != std::string_view::npos; at = Find(text, part, at + part.size())) ++count;
  return count;
}

// {}, {0} and {name}, without formats.
Value Format(Call& c) {
  const Text& text = Self(c);
  Text out;
  size_t next = 0;
  for (size_t at = 0; at < text.size() && c.r.Step() && c.r.FitsText(out.size());) {
    const size_t brace = std::min(text.view().find_first_of("{}", at), text.size());
    out.Append(text, at, brace - at);
    if (brace == text.size()) break;
    if (text.view().substr(brace + 1, 1) == text.view().substr(brace, 1)) {  // a brace twice is a brace
      out.Append(text, brace, 1);
      at = brace + 2;
      continue;
    }
    const size_t end = text.view().find('}', brace);
    if (text.view()[brace] == '}' || end == std::string_view::npos) return c.r.Fail("a brace is not closed or opened");
    const std::string_view name = text.view().substr(brace + 1, end - brace - 1);
    size_t index = next;
    if (name.empty() ? ++next > 0 : absl::SimpleAtoi(std::string(name), &index)) {
      if (index >= c.given.plain.size()) return c.r.Fail("format has too few arguments");
      out.Append(ToText(c[index], c.r));
    } else {
      const Value* found = nullptr;
      for (const auto& [key, value] : c.given.named) found = key == name ? &value : found;
      if (found == nullptr) return c.r.Fail("format has no argument '", name, "', or it has a form of its own");
      out.Append(ToText(*found, c.r));
    }
    at = end + 1;
  }
  return c.r.Make(std::move(out));
}

template <bool (*kIs)(unsigned char)>
Value AllAre(Call& c) {
  const std::string_view text = Self(c).view();
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char b) { return kIs(b); });
}

const Table& TextMethods() {
  static const Table kMethods = {
      {"capitalize", {"", [](Call& c) { return Capitalized(Self(c), c.r); }}},
      {"count", {"sub", CountMethod}},
      {"endswith", {"suffix", HasEndMethod<false>}},
      {"find", {"sub", FindMethodOf}},
      {"format", {"*", Format}},
      {"isalnum", {"", AllAre<absl::ascii_isalnum>}},
      {"isalpha", {"", AllAre<absl::ascii_isalpha>}},
      {"isdigit", {"", AllAre<absl::ascii_isdigit>}},
      {"isspace",
       {"", [](Call& c) -> Value { return !Self(c).empty() && Strip(Self(c), std::nullopt, true, false).empty(); }}},
      {"join", {"iterable", [](Call& c) { return Joined(Self(c), ToList(c[0], c.r)->items, c.r); }}},
      {"lower", {"", [](Call& c) { return Run(FindFilter("lower"), "method", "lower", c.self, {}, c.r); }}},
      {"lstrip", {"chars", Stripped<true, false>}},
      {"removeprefix", {"prefix", WithoutEnd<true>}},
      {"removesuffix", {"suffix", WithoutEnd<false>}},
      {"replace",
       {"old new count",
        [](Call& c) { return Run(FindFilter("replace"), "method", "replace", c.self, std::move(c.given), c.r); }}},
      {"rsplit", {"sep maxsplit", Split<true>}},
      {"rstrip", {"chars", Stripped<false, true>}},
      {"split", {"sep maxsplit", Split<false>}},
      {"splitlines",
       {"keepends",
        [](Call& c) {
          List list;
          ForLines(Self(c), Truth(c[0]), [&](Text line) {
            list.items.push_back(c.r.Make(std::move(line)));
            return c.r.ok();
          });
          return c.r.Make(std::move(list));
        }}},
      {"startswith", {"prefix", HasEndMethod<true>}},
      {"strip", {"chars", Stripped<true, true>}},
      {"title", {"", [](Call& c) { return Run(FindFilter("title"), "method", "title", c.self, {}, c.r); }}},
      {"upper", {"", [](Call& c) { return Run(FindFilter("upper"), "method", "upper", c.self, {}, c.r); }}},
  };
  return kMethods;
}

template <bool kKeys>
Value Halves(Call& c) {
  List list;
  for (const auto& [key, value] : (*As<DictPtr>(c.self))->items) list.items.push_back(kKeys ? key : value);
  return c.r.Step(0, list.items.size()) ? c.r.Make(std::move(list)) : Undefined();
}

const Table& DictMethods() {
  static const Table kMethods = {
      {"copy", {"", [](Call& c) { return c.self; }}},
      {"get",
       {"key default",
        [](Call& c) -> Value {
          const Value* found = (*As<DictPtr>(c.self))->Get(c[0]);
          return found != nullptr ? *found : IsUndefined(c[1]) ? None() : c[1];
        }}},
      {"items", {"", [](Call& c) { return Run(FindFilter("items"), "method", "items", c.self, {}, c.r); }}},
      {"keys", {"", Halves<true>}},
      {"values", {"", Halves<false>}},
  };
  return kMethods;
}

const Table& ListMethods() {
  static const Table kMethods = {
      {"count",
       {"value",
        [](Call& c) -> Value {
          const std::vector<Value>& items = (*As<ListPtr>(c.self))->items;
          return static_cast<int64_t>(
              std::count_if(items.begin(), items.end(), [&](const Value& v) { return Equal(v, c[0], c.r); }));
        }}},
      {"index",
       {"value",
        [](Call& c) -> Value {
          const std::vector<Value>& items = (*As<ListPtr>(c.self))->items;
          for (size_t i = 0; i < items.size() && c.r.ok(); ++i) {
            if (Equal(items[i], c[0], c.r)) return static_cast<int64_t>(i);
          }
          return c.r.Fail("the list has no such item");
        }}},
  };
  return kMethods;
}

const Table& LoopMethods() {
  static const Table kMethods = {
      {"cycle",
       {"*",
        [](Call& c) -> Value {
          if (c.given.plain.empty()) return c.r.Fail("cycle needs an argument");
          return c[(*As<std::shared_ptr<const Loop>>(c.self))->index % c.given.plain.size()];
        }}},
  };
  return kMethods;
}

}  // namespace

const Builtin* FindTest(std::string_view name) {
  return FindIn(Tests(), name);
}
const Builtin* FindFunction(std::string_view name) {
  return FindIn(Functions(), name);
}

const Builtin* FindMethod(const Value& self, std::string_view name) {
  if (AsText(self) != nullptr) return FindIn(TextMethods(), name);
  if (As<DictPtr>(self) != nullptr) return FindIn(DictMethods(), name);
  if (As<ListPtr>(self) != nullptr) return FindIn(ListMethods(), name);
  return As<std::shared_ptr<const Loop>>(self) == nullptr ? nullptr : FindIn(LoopMethods(), name);
}

}  // namespace runahead::jinja
