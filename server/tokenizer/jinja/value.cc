#include "server/tokenizer/jinja/value.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "server/tokenizer/jinja/rendering.h"
#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead::jinja {
namespace {

int DepthOf(const Value& value) {
  if (const List* list = As<List>(value)) return list->depth;
  return As<Dict>(value) == nullptr ? 0 : As<Dict>(value)->depth;
}

}  // namespace

int AnyOrigin::compare(const char32_t* a, const char32_t* b, size_t size) {
  const auto [x, y] = std::mismatch(a, a + size, b, eq);
  return x == a + size ? 0 : lt(*x, *y) ? -1 : 1;
}

const char32_t* AnyOrigin::find(const char32_t* text, size_t size, char32_t c) {
  const char32_t* found = std::find_if(text, text + size, [c](char32_t other) { return eq(c, other); });
  return found == text + size ? nullptr : found;
}

Text FromUtf8(std::string_view utf8, bool own) {
  Text text;
  for (size_t bytes = 0; !utf8.empty(); utf8.remove_prefix(bytes)) {
    const Utf8Step step = NextUtf8(utf8);
    bytes = step.bytes;
    text += (step.kind == Utf8Step::Kind::kCharacter ? FirstCharacter(utf8) : 0xFFFD) | (own ? kOwn : 0);
  }
  return text;
}

std::string ToUtf8(const Text& text) {
  std::string utf8;
  for (const char32_t c : text) AppendCharacter(c & ~kOwn, utf8);
  return utf8;
}

std::vector<TextPart> Parts(const Text& text) {
  std::vector<TextPart> parts;
  for (auto from = text.begin(), to = from; from != text.end(); from = to) {
    to = std::find_if(from, text.end(), [&](char32_t c) { return (c & kOwn) != (*from & kOwn); });
    parts.push_back({ToUtf8(Text(from, to)), (*from & kOwn) != 0});
  }
  return parts;
}

bool IsSpace(char32_t c) {
  c &= ~kOwn;
  return (c >= 0x1c && c <= 0x1f) || IsWhiteSpace(c);
}

Text Strip(const Text& text, const Text* chars, bool left, bool right) {
  const auto stays = [chars](char32_t c) { return chars == nullptr ? !IsSpace(c) : chars->find(c) == Text::npos; };
  const auto begin = left ? std::find_if(text.begin(), text.end(), stays) : text.begin();
  auto end = text.end();
  while (right && end != begin && !stays(end[-1])) --end;
  return Text(begin, end);
}

Text ToCase(const Text& text, bool upper) {
  constexpr char32_t kSharpS = 0xDF;
  Text result;
  for (const char32_t c : text) {
    const auto code = static_cast<utf8proc_int32_t>(c & ~kOwn);
    const bool two = upper && code == kSharpS;
    const auto mapped = static_cast<char32_t>(two ? 'S' : upper ? utf8proc_toupper(code) : utf8proc_tolower(code));
    result.append(two ? 2 : 1, mapped | (c & kOwn));
  }
  return result;
}

std::vector<size_t> Places(const Text& text, const Text& part, int64_t most, Rendering& r) {
  const std::string bytes = ToUtf8(text), searched = ToUtf8(part);
  std::vector<size_t> places;
  r.Step(text.size());
  for (size_t at = 0, characters = 0; static_cast<int64_t>(places.size()) != most; characters += part.size()) {
    const void* found = memmem(bytes.data() + at, bytes.size() - at, searched.data(), searched.size());
    if (found == nullptr) break;
    r.Step();
    const size_t next = static_cast<const char*>(found) - bytes.data();
    for (; at < next; ++at) characters += (static_cast<unsigned char>(bytes[at]) & 0xC0) != 0x80;
    places.push_back(characters);
    at += searched.size();
  }
  return places;
}

void List::Add(Value value) {
  depth = std::max(depth, 1 + DepthOf(value));
  items.push_back(std::move(value));
}

void Dict::Set(const Text& key, Value value) {
  depth = std::max(depth, 1 + DepthOf(value));
  const auto [at, fresh] = index.try_emplace(ToUtf8(key), items.size());
  if (fresh) items.emplace_back(std::make_shared<const Text>(key), Undefined());
  items[at->second].second = std::move(value);
}

const Value* Dict::Get(const std::string& key) const {
  const auto at = index.find(key);
  return at == index.end() ? nullptr : &items[at->second].second;
}

void Call::Bind(const std::vector<std::string>& names, std::string_view function) {
  if (plain.size() > names.size()) Fail("'", function, "' takes fewer arguments");
  plain.resize(names.size());
  for (auto& [name, value] : named) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) Fail("'", function, "' takes no argument '", name, "'");
    plain[at - names.begin()] = std::move(value);
  }
}

std::string_view TypeName(const Value& value) {
  constexpr std::string_view kNames[] = {"undefined", "none",   "a bool", "an integer",  "a float",
                                         "a string",  "a list", "a dict", "a namespace", "a function"};
  return kNames[value.index()];
}

std::string Describe(const Value& value) {
  const Undefined* undefined = As<Undefined>(value);
  if (undefined == nullptr || undefined->name == nullptr) return Cat("it is ", TypeName(value));
  return Cat("'", *undefined->name, "' is undefined");
}

bool Truth(const Value& value) {
  if (const auto size = SizeOf(value)) return *size != 0;
  if (const auto number = ToDouble(value)) return *number != 0;
  return !IsUndefined(value) && As<None>(value) == nullptr;
}

std::optional<int64_t> ToInt(const Value& value) {
  if (const int64_t* whole = As<int64_t>(value)) return *whole;
  if (const bool* truth = As<bool>(value)) return *truth ? 1 : 0;
  return std::nullopt;
}

std::optional<double> ToDouble(const Value& value) {
  if (const auto whole = ToInt(value)) return static_cast<double>(*whole);
  if (const double* real = As<double>(value)) return *real;
  return std::nullopt;
}

std::optional<size_t> SizeOf(const Value& value) {
  if (const Text* text = As<Text>(value)) return text->size();
  if (const List* list = As<List>(value)) return list->items.size();
  if (const Dict* dict = As<Dict>(value)) return dict->items.size();
  return std::nullopt;
}

ListPtr ToList(const Value& value, Rendering& r) {
  if (const ListPtr* list = std::get_if<ListPtr>(&value)) return *list;
  if (!SizeOf(value) && !IsUndefined(value)) Fail(TypeName(value), " has no items to go over");
  r.Step(0, SizeOf(value).value_or(0));
  List list;
  if (const Text* text = As<Text>(value)) {
    for (const char32_t c : *text) list.Add(r.Make(Text(1, c)));
  } else if (const Dict* dict = As<Dict>(value)) {
    for (const auto& item : dict->items) list.Add(item.first);
  }
  return std::get<ListPtr>(r.Make(std::move(list)));
}

}  // namespace runahead::jinja
