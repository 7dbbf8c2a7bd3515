#include "server/grammar/schema_types.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "server/grammar/schema_keywords.h"
#include "server/grammar/schema_place.h"

namespace runahead {
namespace {

constexpr absl::string_view kTypes[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadTypes(const std::string& value, const std::string& place) {
  const auto read = nlohmann::json::parse(value);
  std::vector<std::string> types;
  for (const auto& one : read.is_array() ? read : nlohmann::json::array({read})) {
    const bool known =
        one.is_string() && std::find(std::begin(kTypes), std::end(kTypes), one.get<std::string>()) != std::end(kTypes);
    if (!known)
      return RefuseAt(PlaceBelow(place, "type"), absl::StrCat("a type is one of ", absl::StrJoin(kTypes, ", ")));
    if (std::find(types.begin(), types.end(), one.get<std::string>()) == types.end()) types.push_back(one);
  }
  if (types.empty()) return RefuseAt(PlaceBelow(place, "type"), "this is a type, or an array of one or more");
  return types;
}

absl::StatusOr<std::vector<std::string>> BothTypes(const std::vector<std::string>& own,
                                                   const std::vector<std::string>& others, const std::string& place) {
  const auto has = [](const std::vector<std::string>& list, const std::string& type) {
    return std::find(list.begin(), list.end(), type) != list.end();
  };
  std::vector<std::string> both;
  for (const absl::string_view name : kTypes) {
    const std::string type(name), wider = type == "integer" ? "number" : type;
    if ((has(own, type) || has(own, wider)) && (has(others, type) || has(others, wider))) both.push_back(type);
  }
  if (has(both, "number")) both.erase(std::remove(both.begin(), both.end(), "integer"), both.end());
  if (both.empty()) return RefuseAt(place, "no value is of its type and of the one beside it");
  return both;
}

absl::StatusOr<std::string> TypeOfKeywords(const std::vector<std::string>& keywords, const std::string& place) {
  std::string first;
  for (const std::string& keyword : keywords) {
    const SchemaKeyword kind = *FindSchemaKeyword(keyword);
    const char* const type = kind == SchemaKeyword::kObject   ? "object"
                             : kind == SchemaKeyword::kArray  ? "array"
                             : kind == SchemaKeyword::kString ? "string"
                                                              : "number";
    if (first.empty()) first = type;
    if (first != type) {
      return RefuseAt(place, absl::StrCat("\"type\" is missing, and ", QuotedName(keyword),
                                          " is of another type than what is before it"));
    }
  }
  return first;
}

}  // namespace runahead
