#include "server/tokenizer/jinja/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace runahead::jinja {
namespace {

// Builds values as the parser reports what it finds: nothing is nested, whatever the depth of the JSON.
class JsonReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add(None()); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override {
    return value > INT64_MAX ? Refuse("an integer is beyond 64 bits") : Add(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string& digits) override {
    const bool whole = digits.find_first_of(".eE") == std::string::npos;
    return whole ? Refuse("an integer is beyond 64 bits") : Add(value);
  }
  bool string(std::string& value) override { return Add(std::make_shared<const Text>(value, /*own=*/false)); }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*size*/) override { return Begin(); }
  bool start_array(size_t /*size*/) override { return Begin(); }
  bool key(std::string& value) override {
    open_.back().keys.push_back(std::make_shared<const Text>(value, /*own=*/false));
    return true;
  }
  bool end_array() override {
    List list;
    list.items = std::move(open_.back().values);
    list.depth = open_.back().depth;
    return End(std::make_shared<const List>(std::move(list)));
  }
  bool end_object() override {
    Dict dict;
    Level& level = open_.back();
    for (size_t i = 0; i < level.keys.size(); ++i) dict.Set(level.keys[i], std::move(level.values[i]));
    return End(std::make_shared<const Dict>(std::move(dict)));
  }
  bool parse_error(size_t at, const std::string& /*token*/, const nlohmann::detail::exception& /*why*/) override {
    return Refuse(Cat("it is no JSON at byte ", at));
  }

  Value root;
  std::string refusal;

 private:
  struct Level {
    std::vector<Value> keys, values;
    int depth = 1;
  };

  bool Refuse(std::string why) {
    if (refusal.empty()) refusal = std::move(why);
    return false;
  }
  bool Begin() {
    if (open_.size() >= kMaxJsonDepth) return Refuse(Cat("it is nested deeper than ", kMaxJsonDepth));
    open_.emplace_back();
    return true;
  }
  bool End(Value value) {
    const int depth = open_.back().depth;
    open_.pop_back();
    if (!open_.empty()) open_.back().depth = std::max(open_.back().depth, depth + 1);
    return Add(std::move(value));
  }
  bool Add(Value value) {
    (open_.empty() ? root : open_.back().values.emplace_back()) = std::move(value);
    return true;
  }

  std::vector<Level> open_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Rendering& r) : style_(style), r_(r) {}

  void Write(const Value& value, size_t level) {
    if (!r_.Step() || !r_.FitsText(out.size())) return;
    if (const Text* text = AsText(value)) return WriteText(*text);
    if (const ListPtr* list = As<ListPtr>(value)) return WriteList(**list, level);
    if (const DictPtr* dict = As<DictPtr>(value)) return WriteDict(**dict, level);
    if (const bool* truth = As<bool>(value)) return Plain(*truth ? "true" : "false");
    if (As<None>(value) != nullptr) return Plain("null");
    const double* real = As<double>(value);
    if (real != nullptr && *real - *real != 0) return Plain(*real > 0 ? "Infinity" : *real < 0 ? "-Infinity" : "NaN");
    if (real == nullptr && As<int64_t>(value) == nullptr) {
      r_.Fail("tojson of what has no form in JSON: ", Describe(value));
      return;
    }
    Plain(ToText(value, r_).view());
  }

  Text out;

 private:
  void Plain(std::string_view bytes) { out.Append(bytes, /*own=*/false); }

  void NewLine(size_t level) {
    if (style_.indent == nullptr) return;
    Plain("\n");
    for (size_t i = 0; i < level && r_.FitsText(out.size()); ++i) Plain(*style_.indent);
  }

  void WriteList(const List& list, size_t level) {
    Plain("[");
    for (size_t i = 0; i < list.items.size() && r_.ok(); ++i) {
      if (i > 0) Plain(style_.item_separator);
      NewLine(level + 1);
      Write(list.items[i], level + 1);
    }
    if (!list.items.empty()) NewLine(level);
    Plain("]");
  }

  void WriteDict(const Dict& dict, size_t level) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [&](auto* a, auto* b) { return Less(a->first, b->first, r_); });
    }
    Plain("{");
    for (size_t i = 0; i < items.size() && r_.ok(); ++i) {
      if (i > 0) Plain(style_.item_separator);
      NewLine(level + 1);
      const Value& key = items[i]->first;
      if (AsText(key) == nullptr) Plain("\"");
      Write(key, level);
      if (AsText(key) == nullptr) Plain("\"");
      Plain(style_.key_separator);
      Write(items[i]->second, level + 1);
    }
    if (!items.empty()) NewLine(level);
    Plain("}");
  }

  void WriteText(const Text& text) {
    if (!r_.Step(text.size())) return;
    Plain("\"");
    size_t bytes = 0;
    for (size_t at = 0; at < text.size(); at += bytes) {
      const char32_t c = CharAt(text.view(), at, &bytes);
      const std::string escape = Escape(c);
      escape.empty() ? out.Append(text, at, bytes) : Plain(escape);
    }
    Plain("\"");
  }

  std::string Escape(char32_t c) const {
    constexpr std::string_view kShort = "\"\"\\\\\nn\rr\tt\bb\ff";  // a character, then its letter
    for (size_t i = 0; i < kShort.size(); i += 2) {
      if (c == static_cast<unsigned char>(kShort[i])) return {'\\', kShort[i + 1]};
    }
    const auto unit = [](uint32_t u) { return absl::StrFormat("\\u%04x", u); };
    if (c >= 0x20 && (!style_.ascii_only || c < 0x7f)) return "";
    return c < 0x10000 ? unit(c) : unit(0xD800 + ((c - 0x10000) >> 10)) + unit(0xDC00 + ((c - 0x10000) & 0x3FF));
  }

  const JsonStyle& style_;
  Rendering& r_;
};

}  // namespace

absl::StatusOr<Value> ParseJson(std::string_view json) {
  JsonReader reader;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  if (!parsed) return absl::InvalidArgumentError(reader.refusal.empty() ? "it is no JSON" : reader.refusal);
  return std::move(reader.root);
}

Text ToJson(const Value& value, const JsonStyle& style, Rendering& r) {
  JsonWriter writer(style, r);
  writer.Write(value, 0);
  return std::move(writer.out);
}

}  // namespace runahead::jinja
