// Values as text, in Python's form and in JSON's; filters and methods of texts.
#include <algorithm>

#include "server/tokenizer/jinja/builtins.h"

namespace runahead::jinja {
namespace {

using enum Builtin::Kind;

// Python's repr() has the form of its json.dumps(), but for names, quotes, escapes and tuples. A text in it keeps its
// marks, all else is nobody's.
struct Writer {
  Rendering& r;
  const Quotes quotes;
  const bool json = quotes != Quotes::kPython;
  bool sort_keys = false;
  std::optional<Text> indent = std::nullopt;  // of a level; none: all is on one line
  Text out = {};

  void Write(const Value& value, size_t level = 0) {
    r.Step();
    r.FitText(out.size());
    if (const Text* text = As<Text>(value)) return WriteText(*text);
    if (const List* list = As<List>(value)) return WriteList(*list, level);
    if (const Dict* dict = As<Dict>(value)) return WriteDict(*dict, level);
    if (const bool* truth = As<bool>(value)) return Put(*truth ? (json ? "true" : "True") : json ? "false" : "False");
    if (const int64_t* whole = As<int64_t>(value)) return Put(std::to_string(*whole));
    if (const double* real = As<double>(value)) return Put(FloatText(*real));
    if (As<None>(value) != nullptr) return Put(json ? "null" : "None");
    if (json || !IsUndefined(value)) Fail("it has no form as text or JSON: ", Describe(value));
    Put("Undefined");
  }

  void Put(std::string_view bytes) { out += FromUtf8(bytes, /*own=*/false); }

  void WriteList(const List& list, size_t level) {
    const bool tuple = list.tuple && !json;
    const char* close = !tuple ? "]" : list.items.size() == 1 ? ",)" : ")";
    WriteItems(tuple ? "(" : "[", list.items, close, level, [&](const Value& item) { Write(item, level + 1); });
  }

  void WriteDict(const Dict& dict, size_t level) {
    std::vector<const std::pair<TextPtr, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    const auto before = [](const auto* a, const auto* b) { return *a->first < *b->first; };
    if (sort_keys) std::sort(items.begin(), items.end(), before);
    WriteItems("{", items, "}", level, [&](const auto* item) {
      WriteText(*item->first);
      Put(": ");
      Write(item->second, level + 1);
    });
  }

  template <typename Items, typename F>
  void WriteItems(const char* open, const Items& items, const char* close, size_t level, F write) {
    Put(open);
    for (const auto& item : items) {
      if (&item != &items.front()) Put(indent ? "," : ", ");
      NewLine(level + 1);
      write(item);
    }
    if (!items.empty()) NewLine(level);
    Put(close);
  }

  void NewLine(size_t level) {
    if (!indent) return;
    r.FitText(out.size() + level * indent->size());
    Put("\n");
    for (size_t i = 0; i < level; ++i) out += *indent;
  }

  void WriteText(const Text& text) {
    r.Step(text.size());
    out += Quote(text, quotes);
  }
};

Value ToJson(Call& c) {
  Writer writer{.r = c.r, .quotes = Truth(c[1]) ? Quotes::kAsciiJson : Quotes::kJson, .sort_keys = Truth(c[3])};
  if (const auto width = ToInt(c[2])) writer.indent = Text(std::clamp<int64_t>(*width, 0, 64), U' ');
  if (const Text* text = As<Text>(c[2])) writer.indent = *text;
  writer.Write(c[0]);
  return c.r.Make(std::move(writer.out));
}

// What `kMake` makes of a text.
template <auto kMake>
Value OfText(Call& c) {
  return c.r.Make(kMake(ToText(c[0], c.r)));
}

template <bool kLeft, bool kRight>
Value Stripped(Call& c) {
  const Text text = ToText(c[0], c.r);
  const Text* chars = As<Text>(c[1]);
  if (chars != nullptr) c.r.Step(text.size() * chars->size());
  return c.r.Make(Strip(text, chars, kLeft, kRight));
}

Value Join(Call& c) {
  const Text separator = ToText(c[1], c.r);
  Text joined;
  const ListPtr list = ToList(c[0], c.r);
  for (const Value& item : list->items) {
    if (&item != &list->items.front()) joined += separator;
    joined += ToText(Attribute(item, c[2], c.r), c.r);
    c.r.FitText(joined.size());
  }
  return c.r.Make(std::move(joined));
}

Value Replace(Call& c) {
  const Text text = ToText(c[0], c.r), old = ToText(c[1], c.r), fresh = ToText(c[2], c.r);
  if (old.empty()) Fail("what is to be replaced is empty");
  Text out;
  ForBetween(text, old, ToInt(c[3]).value_or(-1), [&](size_t place, size_t size) {
    if (place > 0) out += fresh;
    out.append(text, place, size);
    c.r.FitText(out.size());
  });
  return c.r.Make(std::move(out));
}

Value Split(Call& c) {
  const Text& text = TextAt(c, 0);
  std::vector<Value> parts;
  const auto add = [&](size_t place, size_t size) { parts.push_back(c.r.Make(text.substr(place, size))); };
  if (IsUndefined(c[1])) {
    if (!IsUndefined(c[2])) Fail("split with a limit needs a separator");
    ForWords(text, add);
  } else {
    if (TextAt(c, 1).empty()) Fail("the separator is empty");
    ForBetween(text, TextAt(c, 1), ToInt(c[2]).value_or(-1), add);
  }
  return c.r.Make(List(std::move(parts)));
}

Value Indented(Call& c) {
  const Text text = ToText(c[0], c.r);
  const int64_t width = std::max<int64_t>(ToInt(c[1]).value_or(4), 0);
  c.r.FitText(static_cast<size_t>(width));
  const Text indent = As<Text>(c[1]) != nullptr ? *As<Text>(c[1]) : Text(width, U' ' | kOwn);
  const auto lines = static_cast<size_t>(1 + std::count_if(text.begin(), text.end(), EndsLine));
  c.r.FitText(text.size() + lines * indent.size());
  return c.r.Make(Indent(text, indent, Truth(c[2]), Truth(c[3])));
}

constexpr Builtin kTextBuiltins[] = {
    {"capitalize", kFilter | kOfText, "s", OfText<[](const Text& s) { return Capitalize(s, false); }>},
    {"endswith", kOfText, "self suffix", [](Call& c) -> Value { return TextAt(c, 0).ends_with(TextAt(c, 1)); }},
    {"indent", kFilter, "s width first blank", Indented},
    {"join", kFilter, "value d attribute", Join},
    {"lower", kFilter | kOfText, "s", OfText<[](const Text& s) { return ToCase(s, /*upper=*/false); }>},
    {"lstrip", kOfText, "self chars", Stripped<true, false>},
    {"replace", kFilter | kOfText, "s old new count", Replace},
    {"rstrip", kOfText, "self chars", Stripped<false, true>},
    {"safe", kFilter, "value", OfText<[](const Text& s) { return s; }>},
    {"split", kOfText, "self sep maxsplit", Split},
    {"startswith", kOfText, "self prefix", [](Call& c) -> Value { return TextAt(c, 0).starts_with(TextAt(c, 1)); }},
    {"string", kFilter, "value", OfText<[](const Text& s) { return s; }>},
    {"strip", kOfText, "self chars", Stripped<true, true>},
    {"title", kFilter, "s", OfText<[](const Text& s) { return Capitalize(s, /*every_word=*/true); }>},
    {"tojson", kFilter, "value ensure_ascii indent sort_keys", ToJson},
    {"trim", kFilter, "value chars", Stripped<true, true>},
    {"upper", kFilter | kOfText, "s", OfText<[](const Text& s) { return ToCase(s, /*upper=*/true); }>},
};

}  // namespace

Text ToText(const Value& value, Rendering& r) {
  if (const Text* text = WrittenText(value)) {
    r.Step(text->size());
    return *text;
  }
  Writer writer{r, Quotes::kPython};
  if (!IsUndefined(value)) writer.Write(value);
  return std::move(writer.out);
}

const Text& TextAt(const Call& c, size_t i) {
  const Text* text = WrittenText(c[i]);
  if (text == nullptr) Fail("an argument must be a string, and ", Describe(c[i]));
  return *text;
}

absl::Span<const Builtin> TextBuiltins() {
  return kTextBuiltins;
}

}  // namespace runahead::jinja
