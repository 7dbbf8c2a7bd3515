// Values as text, in Python's form and in JSON's, and JSON as values.
#include <utf8proc.h>

#include <algorithm>
#include <charconv>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "worker/format/json_value.h"

namespace runahead::jinja {
namespace {

// As Python writes it: the shortest digits that give it back.
std::string FloatText(double number) {
  char buffer[32];
  const auto digits = [&](std::chars_format format) {
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), number, format).ptr);
  };
  const std::string scientific = digits(std::chars_format::scientific);  // d.ddde+XX
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  const std::string plain = digits(std::chars_format::fixed);
  return plain.find('.') == std::string::npos ? plain + ".0" : plain;
}

// Python's repr() has the form of its json.dumps(), but for names, quotes, escapes and tuples. A text in it keeps its
// marks, all else is nobody's.
struct Writer {
  Rendering& r;
  bool json = true;
  bool ascii_only = false, sort_keys = false;
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

  void Separate(bool first, size_t level) {
    if (!first) Put(indent ? "," : ", ");
    if (!indent) return;
    r.FitText(out.size() + level * indent->size());
    Put("\n");
    for (size_t i = 0; i < level; ++i) out += *indent;
  }

  void WriteList(const List& list, size_t level) {
    const bool tuple = list.tuple && !json;
    Put(tuple ? "(" : "[");
    for (const Value& item : list.items) {
      Separate(&item == &list.items.front(), level + 1);
      Write(item, level + 1);
    }
    if (!list.items.empty()) Separate(/*first=*/true, level);
    Put(!tuple ? "]" : list.items.size() == 1 ? ",)" : ")");
  }

  void WriteDict(const Dict& dict, size_t level) {
    std::vector<const std::pair<TextPtr, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    const auto before = [](const auto* a, const auto* b) { return *a->first < *b->first; };
    if (sort_keys) std::sort(items.begin(), items.end(), before);
    Put("{");
    for (const auto* item : items) {
      Separate(item == items.front(), level + 1);
      WriteText(*item->first);
      Put(": ");
      Write(item->second, level + 1);
    }
    if (!items.empty()) Separate(/*first=*/true, level);
    Put("}");
  }

  void WriteText(const Text& text) {
    r.Step(text.size());
    const bool apostrophes = text.find(U'\'') != Text::npos && text.find(U'"') == Text::npos;
    const char quote = json || apostrophes ? '"' : '\'';
    Put({&quote, 1});
    for (const char32_t c : text) {
      const std::string escape = Escape(c & ~kOwn, static_cast<char32_t>(quote));
      escape.empty() ? out.push_back(c) : Put(escape);
    }
    Put({&quote, 1});
  }

  // "" for what stands between quotes as it is.
  std::string Escape(char32_t c, char32_t quote) const {
    constexpr std::string_view kShort = "\nn\rr\tt\bb\ff";  // a character, then its letter
    if (c == U'\\' || c == quote) return {'\\', static_cast<char>(c)};
    for (size_t i = 0; i < (json ? kShort.size() : 6); i += 2) {
      if (c == static_cast<char32_t>(kShort[i])) return {'\\', kShort[i + 1]};
    }
    const auto code = static_cast<uint32_t>(c);
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    const bool printable = c == U' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
    if (json ? c >= 0x20 && (c < 0x7f || !ascii_only) : printable) return "";
    if (json && c >= 0x10000) {
      return absl::StrFormat("\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF));
    }
    if (c < 0x100 && !json) return absl::StrFormat("\\x%02x", code);
    return c < 0x10000 ? absl::StrFormat("\\u%04x", code) : absl::StrFormat("\\U%08x", code);
  }
};

Value FromJson(const JsonValue& json) {
  if (json.boolean() != nullptr) return *json.boolean();
  if (json.integer() != nullptr) return *json.integer();
  if (json.number()) {
    if (json.is_large_integer()) Fail("an integer is beyond 64 bits");
    return *json.number();
  }
  if (json.text() != nullptr) return std::make_shared<const Text>(FromUtf8(*json.text(), /*own=*/false));
  if (json.array() != nullptr) {
    List list;
    for (const JsonValue& item : *json.array()) list.Add(FromJson(item));
    return std::make_shared<const List>(std::move(list));
  }
  if (json.object() == nullptr) return None();
  Dict dict;
  for (const auto& [key, value] : *json.object()) dict.Set(FromUtf8(key, /*own=*/false), FromJson(value));
  return std::make_shared<const Dict>(std::move(dict));
}

}  // namespace

Text ToText(const Value& value, Rendering& r) {
  if (const Text* text = As<Text>(value)) return *text;
  Writer writer{r, /*json=*/false};
  if (!IsUndefined(value)) writer.Write(value);
  return std::move(writer.out);
}

Value ToJson(Call& c) {
  Writer writer{c.r, /*json=*/true, Truth(c[1]), Truth(c[3])};
  if (const auto width = ToInt(c[2])) writer.indent = Text(std::clamp<int64_t>(*width, 0, 64), U' ');
  if (const Text* text = As<Text>(c[2])) writer.indent = *text;
  writer.Write(c[0]);
  return c.r.Make(std::move(writer.out));
}

absl::StatusOr<Value> ParseJson(std::string_view json) try {
  const JsonLimits limits = {.depth = kMaxJsonDepth, .values = kMaxJsonValues};
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonValue parsed, runahead::ParseJson({json.data(), json.size()}, "it", limits));
  return FromJson(parsed);
} catch (const Failure& failure) {
  return failure.status;
}

}  // namespace runahead::jinja
