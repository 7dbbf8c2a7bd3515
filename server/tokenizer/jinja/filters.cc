// The filters.
#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/json.h"

namespace runahead::jinja {
namespace {

using Items = std::vector<Value>;

Value MakeList(Items items, Rendering& r) {
  List list;
  list.items = std::move(items);
  return r.Make(std::move(list));
}

Value Pair(const Value& key, const Value& value, Rendering& r) {
  List pair;
  pair.items = {key, value};
  pair.tuple = true;
  return r.Make(std::move(pair));
}

// "a.b": b of a; numbers are indexes.
Value Attribute(Value value, const Value& path, Rendering& r) {
  const Text* names = AsText(path);
  if (names == nullptr) return Item(value, path, r);
  std::string_view rest = names->view();
  while (r.ok()) {
    const std::string_view name = rest.substr(0, rest.find('.'));
    int64_t index = 0;
    const bool number = absl::SimpleAtoi(std::string(name), &index);
    value = Item(value, number ? Value(index) : r.Make(name), r);
    if (name.size() == rest.size()) break;
    rest.remove_prefix(name.size() + 1);
  }
  return value;
}

// What items are compared by: their attribute, without case.
Value KeyOfItem(const Value& item, const Value& attribute, bool with_case, Rendering& r) {
  const Value key = IsUndefined(attribute) || As<None>(attribute) != nullptr ? item : Attribute(item, attribute, r);
  const Text* text = AsText(key);
  return text == nullptr || with_case || !r.Step(text->size()) ? key : r.Make(ToCase(*text, /*upper=*/false));
}

// `items` in the order of `keys`, which are of one kind.
Items Sorted(const Items& items, const Items& keys, bool reverse, Rendering& r) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return reverse ? Less(keys[b], keys[a], r) : Less(keys[a], keys[b], r); });
  Items sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value Sort(Call& call) {
  const ListPtr list = ToList(call.self, call.r);
  Items keys;
  for (const Value& item : list->items) keys.push_back(KeyOfItem(item, call[2], Truth(call[1]), call.r));
  return MakeList(Sorted(list->items, keys, Truth(call[0]), call.r), call.r);
}

Value DictSort(Call& call) {
  const DictPtr* dict = As<DictPtr>(call.self);
  if (dict == nullptr) return call.r.Fail("dictsort of what is no dict: ", Describe(call.self));
  const Text* by = AsText(call[1]);
  const bool by_value = by != nullptr && by->view() == "value";
  Items items, keys;
  for (const auto& [key, value] : (*dict)->items) {
    items.push_back(Pair(key, value, call.r));
    keys.push_back(KeyOfItem(by_value ? value : key, Undefined(), Truth(call[0]), call.r));
  }
  return MakeList(Sorted(items, keys, Truth(call[2]), call.r), call.r);
}

Value Unique(Call& call) {
  Items kept, keys;
  for (const Value& item : ToList(call.self, call.r)->items) {
    const Value key = KeyOfItem(item, call[1], Truth(call[0]), call.r);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& seen) { return Equal(seen, key, call.r); })) continue;
    keys.push_back(key);
    kept.push_back(item);
  }
  return MakeList(std::move(kept), call.r);
}

template <bool kMost>
Value Extreme(Call& call) {
  const ListPtr list = ToList(call.self, call.r);
  Value best, best_key;
  for (const Value& item : list->items) {
    const Value key = KeyOfItem(item, call[1], Truth(call[0]), call.r);
    const bool first = &item == &list->items[0];
    if (!first && !(kMost ? Less(best_key, key, call.r) : Less(key, best_key, call.r))) continue;
    best = item;
    best_key = key;
  }
  return best;
}

// select, reject, and the same by an attribute: the test's name and its arguments follow.
template <bool kWanted, bool kByAttribute>
Value Select(Call& call) {
  if (!Truth(call.self)) return MakeList({}, call.r);
  Items& given = call.given.plain;
  const size_t first = kByAttribute ? 1 : 0;
  if (given.size() < first) return call.r.Fail("the name of an attribute is missing");
  Items kept;
  for (const Value& item : ToList(call.self, call.r)->items) {
    const Value value = kByAttribute ? Attribute(item, given[0], call.r) : item;
    Value passed = Truth(value);
    if (given.size() > first) {
      const std::string_view test = TextArgument(call, first).view();
      Arguments rest{{given.begin() + static_cast<std::ptrdiff_t>(first) + 1, given.end()}, {}};
      passed = Run(FindTest(test), "test", test, value, std::move(rest), call.r);
    }
    if (!call.r.ok()) break;
    if (Truth(passed) == kWanted) kept.push_back(item);
  }
  return MakeList(std::move(kept), call.r);
}

Value Map(Call& call) {
  if (!Truth(call.self)) return MakeList({}, call.r);
  Value attribute, otherwise;
  for (const auto& [name, value] : call.given.named) {
    if (name == "attribute") attribute = value;
    if (name == "default") otherwise = value;
  }
  Items& given = call.given.plain;
  if (IsUndefined(attribute) && given.empty()) return call.r.Fail("map needs a filter or an attribute");
  Items mapped;
  for (const Value& item : ToList(call.self, call.r)->items) {
    if (!call.r.Step()) break;
    if (IsUndefined(attribute)) {
      const std::string_view filter = TextArgument(call, 0).view();
      Arguments rest{{given.begin() + 1, given.end()}, call.given.named};
      mapped.push_back(Run(FindFilter(filter), "filter", filter, item, std::move(rest), call.r));
    } else {
      mapped.push_back(Attribute(item, attribute, call.r));
      if (IsUndefined(mapped.back())) mapped.back() = otherwise;
    }
  }
  return MakeList(std::move(mapped), call.r);
}

Value Length(Call& call) {
  if (const Text* text = AsText(call.self)) return static_cast<int64_t>(CountChars(text->view()));
  if (const DictPtr* dict = As<DictPtr>(call.self)) return static_cast<int64_t>((*dict)->items.size());
  return static_cast<int64_t>(ToList(call.self, call.r)->items.size());
}

Value Default(Call& call) {
  const bool missing = IsUndefined(call.self) || (Truth(call[1]) && !Truth(call.self));
  if (!missing) return call.self;
  return IsUndefined(call[0]) ? call.r.Make("") : call[0];
}

Value Join(Call& call) {
  Items items = ToList(call.self, call.r)->items;
  if (!IsUndefined(call[1])) {
    for (Value& item : items) item = Attribute(item, call[1], call.r);
  }
  return Joined(ToText(call[0], call.r), items, call.r);
}

Value Trim(Call& call) {
  const Text text = ToText(call.self, call.r);
  const Text* chars = AsText(call[0]);
  if (!call.r.Step(text.size() * (chars == nullptr ? 1 : chars->size()))) return Undefined();
  return call.r.Make(Strip(text, chars == nullptr ? std::nullopt : std::optional(chars->view()), true, true));
}

Value Replace(Call& call) {
  int64_t most = -1;
  ToInt(call[2], &most);
  return Replaced(ToText(call.self, call.r), ToText(call[0], call.r), ToText(call[1], call.r), most, call.r);
}

Value Indent(Call& call) {
  int64_t width = 4;
  ToInt(call[0], &width);
  const Text* with = AsText(call[0]);
  if (!call.r.FitsText(std::max<int64_t>(width, 0))) return Undefined();
  const Text indent = with != nullptr ? *with : Text(std::string(std::max<int64_t>(width, 0), ' '), /*own=*/true);
  Text text = ToText(call.self, call.r);
  text.Append("\n", /*own=*/true);  // so that an empty text is a line, too
  Text out;
  bool first = true;
  ForLines(text, /*keep_ends=*/false, [&](const Text& line) {
    if (!first) out.Append("\n", /*own=*/true);
    if (first ? Truth(call[1]) : !line.empty() || Truth(call[2])) out.Append(indent);
    out.Append(line);
    first = false;
    return call.r.Step(indent.size()) && call.r.FitsText(out.size());
  });
  return call.r.Make(std::move(out));
}

Value ToJsonFilter(Call& call) {
  JsonStyle style;
  int64_t width = 0;
  std::string indent;
  style.ascii_only = Truth(call[0]);
  style.sort_keys = Truth(call[3]);
  if (ToInt(call[1], &width)) indent.assign(std::clamp<int64_t>(width, 0, 64), ' ');
  if (const Text* text = AsText(call[1])) indent = text->view();
  if (!IsUndefined(call[1]) && As<None>(call[1]) == nullptr) {
    style.indent = &indent;
    style.item_separator = ",";
  }
  if (const ListPtr* separators = As<ListPtr>(call[2]); separators != nullptr && (*separators)->items.size() == 2) {
    style.item_separator = std::string(ToText((*separators)->items[0], call.r).view());
    style.key_separator = std::string(ToText((*separators)->items[1], call.r).view());
  }
  return call.r.Make(ToJson(call.self, style, call.r));
}

Value ToNumber(Call& call) {
  int64_t whole = 0;
  double real = 0;
  if (ToInt(call.self, &whole)) return whole;
  const Text* text = AsText(call.self);
  const bool number = text == nullptr ? ToDouble(call.self, &real) : absl::SimpleAtod(std::string(text->view()), &real);
  if (text != nullptr && absl::SimpleAtoi(std::string(text->view()), &whole)) return whole;
  if (number && std::abs(real) < 9e18) return static_cast<int64_t>(real);
  return IsUndefined(call[0]) ? Value(int64_t{0}) : call[0];
}

Value ToFloat(Call& call) {
  double real = 0;
  const Text* text = AsText(call.self);
  if (text == nullptr ? ToDouble(call.self, &real) : absl::SimpleAtod(std::string(text->view()), &real)) return real;
  return IsUndefined(call[0]) ? Value(0.0) : call[0];
}

Value Sum(Call& call) {
  int64_t whole = 0, number = 0;
  double real = 0, addend = 0;
  bool all_whole = true;
  for (const Value& item : ToList(call.self, call.r)->items) {
    const Value value = IsUndefined(call[0]) ? item : Attribute(item, call[0], call.r);
    if (!ToDouble(value, &addend)) return call.r.Fail("sum of what is no number: ", Describe(value));
    real += addend;
    all_whole = all_whole && ToInt(value, &number) && !__builtin_add_overflow(whole, number, &whole);
  }
  return all_whole ? Value(whole) : Value(real);
}

Value Reverse(Call& call) {
  return Slice(call.self, std::nullopt, std::nullopt, -1, call.r);
}

Value ItemPairs(Call& call) {
  const DictPtr* dict = As<DictPtr>(call.self);
  if (dict == nullptr && !IsUndefined(call.self)) return call.r.Fail("items of what is no dict: ", Describe(call.self));
  Items items;
  if (dict != nullptr) {
    for (const auto& [key, value] : (*dict)->items) items.push_back(Pair(key, value, call.r));
  }
  return MakeList(std::move(items), call.r);
}

Value Title(Call& call) {
  const Text text = ToText(call.self, call.r);
  if (!call.r.Step(32 * text.size())) return Undefined();
  Text out;
  size_t begin = 0, bytes = 0;
  for (size_t at = 0; at < text.size(); at += bytes) {
    const char32_t c = CharAt(text.view(), at, &bytes);
    const bool border =
        IsSpace(c) || (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
    if (border || begin == at) out.Append(ToCase(text.Cut(at, bytes), /*upper=*/true));
    if (!border && begin != at) out.Append(ToCase(text.Cut(at, bytes), /*upper=*/false));
    if (border) begin = at + bytes;
  }
  return call.r.Make(std::move(out));
}

template <bool kUpper>
Value Cased(Call& call) {
  const Text text = ToText(call.self, call.r);
  return call.r.Step(8 * text.size()) ? call.r.Make(ToCase(text, kUpper)) : Undefined();
}

const absl::flat_hash_map<std::string_view, Builtin>& Filters() {
  static const absl::flat_hash_map<std::string_view, Builtin> kFilters = {
      {"abs",
       {"",
        [](Call& c) {
          return Truth(c.self) && Less(c.self, int64_t{0}, c.r) ? [&]() -> Value {
         int64_t whole = 0;
         double real = 0;
         if (ToInt(c.self, &whole) && whole != INT64_MIN) return -whole;
         return ToDouble(c.self, &real) ? Value(-real) : c.self;
       }() : c.self;
        }}},
      {"capitalize", {"", [](Call& c) { return Capitalized(ToText(c.self, c.r), c.r); }}},
      {"count", {"", Length}},
      {"d", {"default_value boolean", Default}},
      {"default", {"default_value boolean", Default}},
      {"dictsort", {"case_sensitive by reverse", DictSort}},
      {"first",
       {"",
        [](Call& c) {
          const ListPtr l = ToList(c.self, c.r);
          return l->items.empty() ? Undefined() : l->items.front();
        }}},
      {"float", {"default", ToFloat}},
      {"indent", {"width first blank", Indent}},
      {"int", {"default", ToNumber}},
      {"items", {"", ItemPairs}},
      {"join", {"d attribute", Join}},
      {"last",
       {"",
        [](Call& c) {
          const ListPtr l = ToList(c.self, c.r);
          return l->items.empty() ? Undefined() : l->items.back();
        }}},
      {"length", {"", Length}},
      {"list", {"", [](Call& c) { return MakeList(ToList(c.self, c.r)->items, c.r); }}},
      {"lower", {"", Cased<false>}},
      {"map", {"*", Map}},
      {"max", {"case_sensitive attribute", Extreme<true>}},
      {"min", {"case_sensitive attribute", Extreme<false>}},
      {"reject", {"*", Select<false, false>}},
      {"rejectattr", {"*", Select<false, true>}},
      {"replace", {"old new count", Replace}},
      {"reverse", {"", Reverse}},
      {"safe", {"", [](Call& c) { return c.r.Make(ToText(c.self, c.r)); }}},
      {"select", {"*", Select<true, false>}},
      {"selectattr", {"*", Select<true, true>}},
      {"sort", {"reverse case_sensitive attribute", Sort}},
      {"string", {"", [](Call& c) { return c.r.Make(ToText(c.self, c.r)); }}},
      {"sum", {"attribute", Sum}},
      {"title", {"", Title}},
      {"tojson", {"ensure_ascii indent separators sort_keys", ToJsonFilter}},
      {"trim", {"chars", Trim}},
      {"unique", {"case_sensitive attribute", Unique}},
      {"upper", {"", Cased<true>}},
  };
  return kFilters;
}

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  const auto at = Filters().find(name);
  return at == Filters().end() ? nullptr : &at->second;
}

const Text& TextArgument(const Call& call, size_t i) {
  static const Text kEmpty;
  if (const Text* text = AsText(call[i])) return *text;
  call.r.Fail("an argument must be a string, and ", Describe(call[i]));
  return kEmpty;
}

Value Joined(const Text& separator, const std::vector<Value>& items, Rendering& r) {
  Text out;
  for (size_t i = 0; i < items.size() && r.Step(separator.size()) && r.FitsText(out.size()); ++i) {
    if (i > 0) out.Append(separator);
    out.Append(ToText(items[i], r));
  }
  return r.Make(std::move(out));
}

Value Replaced(const Text& text, const Text& old, const Text& fresh, int64_t most, Rendering& r) {
  if (!r.Step(text.size())) return Undefined();
  Text out;
  size_t at = 0;
  for (; most != 0 && r.Step(fresh.size()) && r.FitsText(out.size()); --most) {
    size_t found = Find(text.view(), old.view(), at);
    if (old.empty()) {  // between all characters
      size_t bytes = 0;
      out.Append(fresh);
      if (at >= text.size()) break;
      CharAt(text.view(), at, &bytes);
      out.Append(text, at, bytes);
      at += bytes;
      continue;
    }
    if (found == std::string_view::npos) break;
    out.Append(text, at, found - at);
    out.Append(fresh);
    at = found + old.size();
  }
  out.Append(text, at, text.size() - at);
  return r.Make(std::move(out));
}

Value Capitalized(const Text& text, Rendering& r) {
  if (text.empty() || !r.Step(8 * text.size())) return r.Make(Text());
  size_t bytes = 0;
  CharAt(text.view(), 0, &bytes);
  Text out = ToCase(text.Cut(0, bytes), /*upper=*/true);
  out.Append(ToCase(text.Cut(bytes, text.size() - bytes), /*upper=*/false));
  return r.Make(std::move(out));
}

}  // namespace runahead::jinja
