#include "server/tokenizer/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_format.h"

namespace runahead::jinja {
namespace {

// What a key is known by: equal keys have one. "" for what cannot be a key.
std::string KeyOf(const Value& key) {
  if (const Text* text = AsText(key)) return Cat("t", text->view());
  if (As<None>(key) != nullptr) return "n";
  double number = 0;
  int64_t whole = 0;
  if (ToInt(key, &whole)) return Cat("i", whole);
  if (!ToDouble(key, &number)) return "";
  return number == std::floor(number) && std::abs(number) < 1e15 ? Cat("i", static_cast<int64_t>(number))
                                                                 : Cat("f", FloatText(number));
}

int DepthOf(const Value& value) {
  if (const ListPtr* list = As<ListPtr>(value)) return (*list)->depth;
  const DictPtr* dict = As<DictPtr>(value);
  return dict == nullptr ? 0 : (*dict)->depth;
}

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  if (IsSpace(c) || c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad) return false;
  return !((c >= 0x200b && c <= 0x200f) || (c >= 0x202a && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) ||
           (c >= 0xd800 && c <= 0xf8ff) || c == 0xfeff || (c >= 0xfff0 && c <= 0xfffb) || c >= 0xe0000);
}

// As it stands between quotes; "" for what stands there as it is.
std::string EscapeOf(char32_t c, char quote) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (c == '\\' || c == static_cast<char32_t>(quote)) return Cat("\\", std::string(1, static_cast<char>(c)));
  if (IsPrintable(c)) return "";
  const auto code = static_cast<uint32_t>(c);
  return c < 0x100     ? absl::StrFormat("\\x%02x", code)
         : c < 0x10000 ? absl::StrFormat("\\u%04x", code)
                       : absl::StrFormat("\\U%08x", code);
}

void AppendQuoted(const Text& text, Text& out) {
  const std::string_view view = text.view();
  const bool single = view.find('\'') == std::string_view::npos || view.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  out.Append(std::string(1, quote), /*own=*/false);
  size_t bytes = 0;
  for (size_t at = 0; at < view.size(); at += bytes) {
    const std::string escape = EscapeOf(CharAt(view, at, &bytes), quote);
    escape.empty() ? out.Append(text, at, bytes) : out.Append(escape, /*own=*/false);
  }
  out.Append(std::string(1, quote), /*own=*/false);
}

void AppendRepr(const Value& value, Rendering& r, Text& out) {
  if (!r.Step() || !r.FitsText(out.size())) return;
  const auto write = [&out](std::string_view bytes) { out.Append(bytes, /*own=*/false); };
  if (const Text* text = AsText(value)) {
    if (r.Step(text->size())) AppendQuoted(*text, out);
  } else if (const ListPtr* list = As<ListPtr>(value)) {
    const List& l = **list;
    write(l.tuple ? "(" : "[");
    for (size_t i = 0; i < l.items.size() && r.ok(); ++i) {
      if (i > 0) write(", ");
      AppendRepr(l.items[i], r, out);
    }
    write(l.tuple ? (l.items.size() == 1 ? ",)" : ")") : "]");
  } else if (const DictPtr* dict = As<DictPtr>(value)) {
    write("{");
    for (size_t i = 0; i < (*dict)->items.size() && r.ok(); ++i) {
      if (i > 0) write(", ");
      AppendRepr((*dict)->items[i].first, r, out);
      write(": ");
      AppendRepr((*dict)->items[i].second, r, out);
    }
    write("}");
  } else {
    write(IsUndefined(value) ? "Undefined" : ToText(value, r).view());
  }
}

}  // namespace

bool Dict::Set(const Value& key, Value value) {
  std::string name = KeyOf(key);
  if (name.empty()) return false;
  depth = std::max(depth, 1 + DepthOf(value));
  const auto [at, fresh] = index.try_emplace(std::move(name), items.size());
  if (fresh) {
    items.emplace_back(key, std::move(value));
  } else {
    items[at->second].second = std::move(value);
  }
  return true;
}

const Value* Dict::Get(const Value& key) const {
  const auto at = index.find(KeyOf(key));
  return at == index.end() ? nullptr : &items[at->second].second;
}

const Value* Dict::Get(std::string_view key) const {
  const auto at = index.find(Cat("t", key));
  return at == index.end() ? nullptr : &items[at->second].second;
}

std::string PlaceIn(std::string_view source, size_t place) {
  constexpr size_t kShown = 60;
  place = std::min(place, source.size());
  const auto line = 1 + std::count(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(place), '\n');
  std::string_view shown = source.substr(place, source.find('\n', place) - place);
  if (shown.size() > kShown) {
    size_t end = kShown;
    while (end > 0 && (static_cast<unsigned char>(shown[end]) & 0xC0) == 0x80) --end;
    shown = shown.substr(0, end);
  }
  return Cat("line ", line, ", at `", shown, "`");
}

Value Rendering::FailHere(std::string_view message) {
  if (ok()) status_ = absl::InvalidArgumentError(Cat(PlaceIn(source_, place_), ": ", message));
  return Undefined();
}

Value Rendering::Raise(const Text& message) {
  std::string shown;  // without what the caller wrote: errors are logged
  for (const TextPart& part : message.Parts()) shown += part.parse_special ? part.text : "...";
  if (ok()) status_ = absl::InvalidArgumentError(Cat("the chat template says: ", shown));
  return Undefined();
}

bool Rendering::Step(size_t bytes, size_t items) {
  constexpr size_t kBytesPerStep = 256;
  constexpr int64_t kStepsBetween = 4096;
  if (!ok()) return false;
  const int64_t before = steps_;
  steps_ += static_cast<int64_t>(1 + items + bytes / kBytesPerStep);
  if (before / kStepsBetween != steps_ / kStepsBetween) status_ = keep_going_();
  if (steps_ > limits_.steps) Fail("the template takes more than ", limits_.steps, " steps");
  return ok();
}

bool Rendering::FitsText(size_t bytes) {
  if (bytes > limits_.text) Fail("a text is longer than ", limits_.text, " bytes");
  return ok();
}

bool Rendering::Keep(size_t bytes) {
  memory_ += static_cast<int64_t>(bytes);
  if (memory_ > limits_.memory) Fail("the template's values take more than ", limits_.memory, " bytes");
  return ok();
}

template <typename T>
Value Rendering::Counted(T value, size_t bytes) {
  if (!Keep(bytes)) return Undefined();
  const T* made = new T(std::move(value));
  return std::shared_ptr<const T>(made, [this, bytes](const T* gone) {
    memory_ -= static_cast<int64_t>(bytes);
    delete gone;
  });
}

Value Rendering::Make(Text text) {
  constexpr size_t kOverhead = 160;
  if (!FitsText(text.size())) return Undefined();
  const size_t bytes = kOverhead + 2 * text.size();  // with the marks
  return Counted(std::move(text), bytes);
}

Value Rendering::Make(List list) {
  constexpr size_t kOverhead = 96;
  for (const Value& item : list.items) list.depth = std::max(list.depth, 1 + DepthOf(item));
  if (list.depth > kMaxDepth) return Fail("lists are nested deeper than ", kMaxDepth);
  const size_t bytes = kOverhead + list.items.size() * sizeof(Value);
  return Counted(std::move(list), bytes);
}

Value Rendering::Make(Dict dict) {
  constexpr size_t kOverhead = 160;
  if (dict.depth > kMaxDepth) return Fail("dicts are nested deeper than ", kMaxDepth);
  size_t bytes = kOverhead + dict.items.size() * (2 * sizeof(Value) + 96);
  for (const auto& [key, value] : dict.items) bytes += AsText(key) == nullptr ? 0 : AsText(key)->size();
  return Counted(std::move(dict), bytes);
}

std::string_view TypeName(const Value& value) {
  constexpr std::string_view kNames[] = {"undefined", "none",   "a bool",      "an integer", "a float",    "a string",
                                         "a list",    "a dict", "a namespace", "a loop",     "a function", "a macro"};
  return kNames[value.index()];
}

std::string Describe(const Value& value) {
  const Undefined* undefined = As<Undefined>(value);
  if (undefined == nullptr) return Cat("it is ", TypeName(value));
  return undefined->name == nullptr ? "it is undefined" : Cat("'", *undefined->name, "' is undefined");
}

bool Truth(const Value& value) {
  if (const Text* text = AsText(value)) return !text->empty();
  if (const ListPtr* list = As<ListPtr>(value)) return !(*list)->items.empty();
  if (const DictPtr* dict = As<DictPtr>(value)) return !(*dict)->items.empty();
  double number = 0;
  if (ToDouble(value, &number)) return number != 0;
  return !IsUndefined(value) && As<None>(value) == nullptr;
}

bool ToInt(const Value& value, int64_t* number) {
  if (const int64_t* whole = As<int64_t>(value)) return *number = *whole, true;
  if (const bool* truth = As<bool>(value)) return *number = *truth, true;
  return false;
}

bool ToDouble(const Value& value, double* number) {
  int64_t whole = 0;
  if (ToInt(value, &whole)) return *number = static_cast<double>(whole), true;
  const double* real = As<double>(value);
  return real != nullptr && (*number = *real, true);
}

bool Equal(const Value& a, const Value& b, Rendering& r) {
  if (!r.Step()) return false;
  int64_t i = 0, j = 0;
  double x = 0, y = 0;
  if (ToInt(a, &i) && ToInt(b, &j)) return i == j;
  if (ToDouble(a, &x) && ToDouble(b, &y)) return x == y;
  if (a.index() != b.index()) return false;
  if (const Text* text = AsText(a)) {
    return r.Step(std::min(text->size(), AsText(b)->size())) && text->view() == AsText(b)->view();
  }
  if (const ListPtr* list = As<ListPtr>(a)) {
    const List &l = **list, &m = **As<ListPtr>(b);
    if (l.tuple != m.tuple || l.items.size() != m.items.size()) return false;
    for (size_t k = 0; k < l.items.size(); ++k) {
      if (!Equal(l.items[k], m.items[k], r)) return false;
    }
    return true;
  }
  if (const DictPtr* dict = As<DictPtr>(a)) {
    const Dict& other = **As<DictPtr>(b);
    if ((*dict)->items.size() != other.items.size()) return false;
    for (const auto& [key, value] : (*dict)->items) {
      const Value* found = other.Get(key);
      if (found == nullptr || !Equal(value, *found, r)) return false;
    }
    return true;
  }
  if (Dict* const* space = As<Dict*>(a)) return *space == *As<Dict*>(b);
  if (const Macro* const* macro = As<const Macro*>(a)) return *macro == *As<const Macro*>(b);
  return IsUndefined(a) || As<None>(a) != nullptr;
}

bool Less(const Value& a, const Value& b, Rendering& r) {
  if (!r.Step()) return false;
  int64_t i = 0, j = 0;
  double x = 0, y = 0;
  if (ToInt(a, &i) && ToInt(b, &j)) return i < j;
  if (ToDouble(a, &x) && ToDouble(b, &y)) return x < y;
  if (const Text* s = AsText(a), *t = AsText(b); s != nullptr && t != nullptr) {
    return r.Step(std::min(s->size(), t->size())) && s->view() < t->view();
  }
  if (const ListPtr* l = As<ListPtr>(a), *m = As<ListPtr>(b); l != nullptr && m != nullptr) {
    const std::vector<Value>&u = (*l)->items, &v = (*m)->items;
    for (size_t k = 0; k < std::min(u.size(), v.size()); ++k) {
      if (!Equal(u[k], v[k], r)) return r.ok() && Less(u[k], v[k], r);
    }
    return u.size() < v.size();
  }
  r.Fail(TypeName(a), " and ", TypeName(b), " cannot be ordered");
  return false;
}

bool Contains(const Value& whole, const Value& part, Rendering& r) {
  if (const Text* text = AsText(whole)) {
    const Text* searched = AsText(part);
    if (searched == nullptr) return r.Fail(TypeName(part), " cannot be in a string"), false;
    return r.Step(text->size()) && Find(text->view(), searched->view(), 0) != std::string_view::npos;
  }
  if (const DictPtr* dict = As<DictPtr>(whole)) {
    return r.Step(AsText(part) == nullptr ? 0 : AsText(part)->size()) && (*dict)->Get(part) != nullptr;
  }
  const ListPtr list = ToList(whole, r);
  return std::any_of(list->items.begin(), list->items.end(), [&](const Value& item) { return Equal(item, part, r); });
}

ListPtr ToList(const Value& value, Rendering& r) {
  static const ListPtr kEmpty = std::make_shared<const List>();
  if (const ListPtr* list = As<ListPtr>(value)) return *list;
  List list;
  if (const Text* text = AsText(value)) {
    // Each character becomes a value of its own.
    if (!r.Step(0, text->size())) return kEmpty;
    size_t bytes = 0;
    for (size_t at = 0; at < text->size() && r.ok(); at += bytes) {
      CharAt(text->view(), at, &bytes);
      list.items.push_back(r.Make(text->Cut(at, bytes)));
    }
  } else if (const DictPtr* dict = As<DictPtr>(value)) {
    if (!r.Step(0, (*dict)->items.size())) return kEmpty;
    for (const auto& item : (*dict)->items) list.items.push_back(item.first);
  } else if (!IsUndefined(value)) {
    r.Fail(TypeName(value), " has no items to go over");
  }
  const Value made = r.Make(std::move(list));
  const ListPtr* result = As<ListPtr>(made);
  return result == nullptr ? kEmpty : *result;
}

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific).ptr;
  std::string text(buffer, end);  // d.ddde+XX
  const int exponent = std::atoi(text.c_str() + text.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return text;
  const auto plain = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed).ptr;
  text.assign(buffer, plain);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

Text ToText(const Value& value, Rendering& r) {
  if (const Text* text = AsText(value)) return *text;
  Text out;
  const auto given = [](std::string_view bytes) { return Text(bytes, /*own=*/false); };
  if (IsUndefined(value)) return out;
  if (As<None>(value) != nullptr) return given("None");
  if (const bool* truth = As<bool>(value)) return given(*truth ? "True" : "False");
  if (const int64_t* whole = As<int64_t>(value)) return given(Cat(*whole));
  if (const double* real = As<double>(value)) return given(FloatText(*real));
  if (As<ListPtr>(value) != nullptr || As<DictPtr>(value) != nullptr) {
    AppendRepr(value, r, out);
  } else {
    r.Fail(TypeName(value), " cannot be shown as text");
  }
  return out;
}

}  // namespace runahead::jinja
