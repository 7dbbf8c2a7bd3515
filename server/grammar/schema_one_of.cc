#include "server/grammar/schema_one_of.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "server/base/indexed_map.h"

namespace runahead {
namespace {

using Json = nlohmann::basic_json<IndexedMap>;

constexpr size_t kMaxComparisons = 10000;  // of the values of two schemas; beyond it nothing is plain

std::optional<std::vector<Json>> ValuesOf(const Json& schema) {
  if (schema.contains("const")) return std::vector<Json>{schema["const"]};
  if (schema.contains("enum")) return schema["enum"].get<std::vector<Json>>();
  return std::nullopt;
}

// Integers are numbers, too.
std::string TypeOf(const Json& value) {
  return value.is_number() ? "number" : value.type_name();
}

// None where it may be any.
std::optional<std::set<std::string>> TypesOf(const Json& schema) {
  std::set<std::string> types;
  if (const auto values = ValuesOf(schema)) {
    for (const Json& value : *values) types.insert(TypeOf(value));
    return types;
  }
  if (schema.contains("type")) {
    const std::string type = schema["type"];
    return std::set<std::string>{type == "integer" ? "number" : type};
  }
  if (!schema.contains("anyOf")) return std::nullopt;
  for (const Json& one : schema["anyOf"]) {
    const auto of_one = TypesOf(one);
    if (!of_one) return std::nullopt;
    types.insert(of_one->begin(), of_one->end());
  }
  return types;
}

bool Exclude(const Json& a, const Json& b);

// By a property that both have in any case.
bool ExcludeByProperty(const Json& a, const Json& b) {
  if (!a.contains("required") || !b.contains("required")) return false;
  return std::any_of(a["required"].begin(), a["required"].end(), [&](const Json& name) {
    const auto& in_b = b["required"];
    if (std::find(in_b.begin(), in_b.end(), name) == in_b.end()) return false;
    return Exclude(a["properties"][name.get<std::string>()], b["properties"][name.get<std::string>()]);
  });
}

bool Exclude(const Json& a, const Json& b) {
  const auto types_a = TypesOf(a);
  const auto types_b = TypesOf(b);
  if (!types_a || !types_b) return false;
  const bool apart =
      std::none_of(types_a->begin(), types_a->end(), [&](const auto& type) { return types_b->count(type); });
  if (apart) return true;
  const auto values_a = ValuesOf(a);
  const auto values_b = ValuesOf(b);
  if (values_a && values_b) {
    return values_a->size() * values_b->size() <= kMaxComparisons &&
           std::none_of(values_a->begin(), values_a->end(), [&](const Json& value) {
             return std::find(values_b->begin(), values_b->end(), value) != values_b->end();
           });
  }
  return ExcludeByProperty(a, b);
}

}  // namespace

bool ExcludeEachOther(const std::string& schemas) {
  const Json all = Json::parse(schemas);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      if (!Exclude(all[i], all[j])) return false;
    }
  }
  return true;
}

}  // namespace runahead
