#include "server/grammar/schema_types.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/grammar/schema_keywords.h"
#include "server/grammar/schema_place.h"

namespace runahead {
namespace {

constexpr absl::string_view kTypes[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

}  // namespace

bool IsTypeOf(const nlohmann::ordered_json& value, absl::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number_integer();
  if (type == "boolean") return value.is_boolean();
  return value.is_null();
}

absl::StatusOr<std::vector<std::string>> ReadTypes(const nlohmann::ordered_json& value, const std::string& place) {
  std::vector<std::string> types;
  for (const nlohmann::ordered_json& one : value.is_array() ? value : nlohmann::ordered_json::array({value})) {
    const bool known =
        one.is_string() && std::find(std::begin(kTypes), std::end(kTypes), one.get<std::string>()) != std::end(kTypes);
    if (!known)
      return RefuseAt(PlaceBelow(place, "type"), absl::StrCat("a type is one of ", absl::StrJoin(kTypes, ", ")));
    if (std::find(types.begin(), types.end(), one.get<std::string>()) == types.end()) types.push_back(one);
  }
  if (types.empty()) return RefuseAt(PlaceBelow(place, "type"), "this is a type, or an array of one or more");
  return types;
}

absl::StatusOr<nlohmann::ordered_json> OfTypes(nlohmann::ordered_json schema, const std::vector<std::string>& types,
                                               const std::string& place) {
  if (types.empty()) return schema;
  if (schema.is_boolean() && schema.get<bool>()) return nlohmann::ordered_json{{"type", types}};
  if (!schema.is_object()) return schema;
  std::vector<std::string> both = types;
  if (schema.contains("type")) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<std::string> own, ReadTypes(schema["type"], place));
    const auto has = [](const std::vector<std::string>& list, const std::string& type) {
      return std::find(list.begin(), list.end(), type) != list.end();
    };
    both.clear();
    for (const absl::string_view name : kTypes) {
      const std::string type(name), wider = type == "integer" ? "number" : type;
      if ((has(own, type) || has(own, wider)) && (has(types, type) || has(types, wider))) both.push_back(type);
    }
    if (has(both, "number")) both.erase(std::remove(both.begin(), both.end(), "integer"), both.end());
    if (both.empty()) return RefuseAt(place, "no value is of its type and of the one beside it");
  }
  schema["type"] = both.size() == 1 ? nlohmann::ordered_json(both[0]) : nlohmann::ordered_json(both);
  return schema;
}

absl::StatusOr<std::vector<std::string>> TypesOfKeywords(const nlohmann::ordered_json& schema,
                                                         const std::string& place) {
  std::vector<std::string> types;
  for (const auto& [keyword, unused] : schema.items()) {
    const SchemaKeyword kind = *FindSchemaKeyword(keyword);
    const char* type = kind == SchemaKeyword::kObject   ? "object"
                       : kind == SchemaKeyword::kArray  ? "array"
                       : kind == SchemaKeyword::kString ? "string"
                                                        : "number";
    if (types.empty()) types.push_back(type);
    if (types[0] != type) {
      return RefuseAt(place, absl::StrCat("\"type\" is missing, and ", QuotedName(keyword),
                                          " is of another type than what is before it"));
    }
  }
  return types;
}

}  // namespace runahead
