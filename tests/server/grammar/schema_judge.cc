#include "tests/server/grammar/schema_judge.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

namespace runahead {
namespace {

using nlohmann::json;

bool HasType(const json& value, const std::string& type) {
  if (type == "integer") return value.is_number() && value.get<double>() == std::floor(value.get<double>());
  if (type == "number") return value.is_number();
  return value.type_name() == type;
}

// `text` is UTF-8.
std::wstring Characters(const std::string& text) {
  std::wstring characters;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) == 0x80) {
      characters.back() = characters.back() << 6 | (byte & 0x3F);
    } else {
      characters += static_cast<wchar_t>(byte < 0x80   ? byte
                                         : byte < 0xE0 ? byte & 0x1F
                                         : byte < 0xF0 ? byte & 0xF
                                                       : byte & 7);
    }
  }
  return characters;
}

class Judge {
 public:
  explicit Judge(const json& root) : root_(root) {}

  bool Accepts(const json& schema, const json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    return Forms(schema, value) && Typed(schema, value) &&
           (!value.is_number() || Number(schema, value.get<double>())) &&
           (!value.is_string() || Text(schema, value.get<std::string>())) &&
           (!value.is_array() || Items(schema, value)) && (!value.is_object() || Members(schema, value));
  }

 private:
  int64_t Matches(const json& schemas, const json& value) const {
    return std::count_if(schemas.begin(), schemas.end(), [&](const json& one) { return Accepts(one, value); });
  }

  bool Forms(const json& schema, const json& value) const {
    if (schema.contains("$ref")) {
      const std::string uri = schema["$ref"];
      if (!Accepts(root_.at(json::json_pointer(uri.substr(1))), value)) return false;
    }
    if (schema.contains("const") && schema["const"] != value) return false;
    if (schema.contains("enum") && std::count(schema["enum"].begin(), schema["enum"].end(), value) == 0) return false;
    if (schema.contains("anyOf") && Matches(schema["anyOf"], value) == 0) return false;
    if (schema.contains("oneOf") && Matches(schema["oneOf"], value) != 1) return false;
    return !schema.contains("allOf") || Matches(schema["allOf"], value) == static_cast<int64_t>(schema["allOf"].size());
  }

  static bool Typed(const json& schema, const json& value) {
    if (!schema.contains("type")) return true;
    const json types = schema["type"].is_array() ? schema["type"] : json::array({schema["type"]});
    return std::any_of(types.begin(), types.end(), [&](const json& type) { return HasType(value, type); });
  }

  static bool Number(const json& schema, double value) {
    if (schema.contains("minimum") && value < schema["minimum"]) return false;
    if (schema.contains("maximum") && value > schema["maximum"]) return false;
    if (schema.contains("exclusiveMinimum") && value <= schema["exclusiveMinimum"]) return false;
    if (schema.contains("exclusiveMaximum") && value >= schema["exclusiveMaximum"]) return false;
    constexpr double kExact = 9007199254740992;  // beyond it a double says nothing
    return !schema.contains("multipleOf") || std::abs(value) > kExact ||
           std::fmod(value, schema["multipleOf"].get<double>()) == 0;
  }

  static bool Text(const json& schema, const std::string& value) {
    if (schema.contains("minLength") && Characters(value).size() < schema["minLength"]) return false;
    if (schema.contains("maxLength") && Characters(value).size() > schema["maxLength"]) return false;
    return !schema.contains("pattern") ||
           std::regex_search(Characters(value), std::wregex(Characters(schema["pattern"])));
  }

  bool Items(const json& schema, const json& value) const {
    if (schema.contains("minItems") && value.size() < schema["minItems"]) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"]) return false;
    const json first = schema.value("prefixItems", json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      if (!Accepts(i < first.size() ? first[i] : schema.value("items", json(true)), value[i])) return false;
    }
    return true;
  }

  bool Members(const json& schema, const json& value) const {
    for (const json& name : schema.value("required", json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const json properties = schema.value("properties", json::object());
    for (const auto& [name, member] : value.items()) {
      const json others = schema.value("additionalProperties", json(true));
      if (!Accepts(properties.contains(name) ? properties[name] : others, member)) return false;
    }
    return true;
  }

  const json& root_;
};

}  // namespace

bool AcceptedBySchema(const std::string& schema, const std::string& text) {
  const json root = json::parse(schema);
  return Judge(root).Accepts(root, json::parse(text));
}

}  // namespace runahead
