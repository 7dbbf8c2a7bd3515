#include "server/grammar/schema_form.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/base/indexed_map.h"
#include "server/grammar/compile_cost.h"
#include "server/grammar/form_graph.h"
#include "server/grammar/regex_form.h"
#include "server/grammar/schema_doubles.h"
#include "server/grammar/schema_formats.h"
#include "server/grammar/schema_keywords.h"
#include "server/grammar/schema_numbers.h"
#include "server/grammar/schema_one_of.h"
#include "server/grammar/schema_place.h"
#include "server/grammar/schema_types.h"

namespace runahead {
namespace {

using Json = nlohmann::basic_json<IndexedMap>;  // properties are written in the order of the schema

constexpr int64_t kItemsShare = 10;  // so many items cost as much as a schema
constexpr size_t kMaxOneOf = 64;     // each is compared with each

bool IsTypeOf(const Json& value, absl::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number_integer();
  if (type == "boolean") return value.is_boolean();
  return value.is_null();
}

class SchemaReader {
 public:
  absl::StatusOr<std::string> Read(const Json& root) {
    RUNAHEAD_ASSIGN_OR_RETURN(const ReadSchema read, Schema(root, ""));
    graph_.Define("#", read.node);
    if (const auto place = graph_.FirstUndefined()) {
      return RefuseAt(*place, "$ref is none of the schema's #, #/$defs/NAME and #/definitions/NAME");
    }
    if (const auto place = graph_.FirstEndless()) return RefuseAt(*place, "no value of this ends: it refers to itself");
    return read.json.dump();
  }

 private:
  // A schema in the form that the compiler gets, and its node of the graph.
  struct ReadSchema {
    Json json;
    int node;
  };

  absl::StatusOr<ReadSchema> Schema(const Json& schema, const std::string& place) {
    RUNAHEAD_RETURN_IF_ERROR(Spend(1, place));
    if (schema.is_boolean() && schema.get<bool>()) return ReadSchema{Json::object(), graph_.AddAll(place, {})};
    if (schema.is_boolean()) return RefuseAt(place, "the schema false accepts nothing");
    if (!schema.is_object()) return RefuseAt(place, "a schema is an object, true or false");
    const Json::object_t::value_type* form = nullptr;
    Json kept = Json::object();
    Json definitions = Json::object();
    for (const auto& entry : schema.get_ref<const Json::object_t&>()) {
      const auto keyword = FindSchemaKeyword(entry.first);
      if (!keyword) return RefuseAt(place, absl::StrCat("the keyword ", QuotedName(entry.first), " is not supported"));
      if (*keyword == SchemaKeyword::kAnnotation) continue;
      if (*keyword == SchemaKeyword::kDefinitions) {
        RUNAHEAD_ASSIGN_OR_RETURN(definitions[entry.first], Definitions(entry.first, entry.second, place));
        continue;
      }
      if (*keyword == SchemaKeyword::kForm) {
        if (form != nullptr) return Beside(entry.first, form->first, place);
        form = &entry;
      } else {
        kept[entry.first] = entry.second;
      }
    }
    RUNAHEAD_ASSIGN_OR_RETURN(ReadSchema read, form != nullptr ? Form(form->first, form->second, kept, place)
                                                               : Typed(std::move(kept), place));
    for (auto& [name, schemas] : definitions.items()) read.json[name] = std::move(schemas);
    return read;
  }

  static absl::Status Beside(absl::string_view keyword, absl::string_view form, absl::string_view place) {
    return RefuseAt(place, absl::StrCat(QuotedName(keyword), " beside ", QuotedName(form), " is not supported"));
  }

  // What is written out costs time to compile. Counts of arrays within arrays add up: their items are not written out.
  absl::Status Spend(int64_t written, absl::string_view place) {
    written_ += written;
    if (written_ <= kMaxWrittenOut) return absl::OkStatus();
    return RefuseAt(place,
                    absl::StrCat("its schemas, a tenth of its counts of items, and the characters of its patterns and "
                                 "bounded texts with their counts written out add up to more than ",
                                 kMaxWrittenOut));
  }

  absl::StatusOr<Json> Definitions(const std::string& keyword, const Json& value, const std::string& place) {
    if (!place.empty()) return RefuseAt(place, absl::StrCat(QuotedName(keyword), " is supported at the root only"));
    const std::string below = PlaceBelow(place, keyword);
    if (!value.is_object()) return RefuseAt(below, "this is an object of schemas");
    Json schemas = Json::object();
    for (const auto& [name, schema] : value.items()) {
      // xgrammar takes a URI as it stands.
      const bool plain = !name.empty() && name.find_first_of("/~%") == std::string::npos;
      if (!plain)
        return RefuseAt(below,
                        absl::StrCat("the name ", QuotedName(name), " with /, ~ or %, or empty, is not supported"));
      RUNAHEAD_ASSIGN_OR_RETURN(ReadSchema read, Schema(schema, PlaceBelow(below, name)));
      graph_.Define(absl::StrCat("#/", keyword, "/", name), read.node);
      schemas[name] = std::move(read.json);
    }
    return schemas;
  }

  absl::StatusOr<ReadSchema> Form(const std::string& keyword, const Json& value, const Json& others,
                                  const std::string& place) {
    const bool values = keyword == "const" || keyword == "enum";
    for (const auto& [other, unused] : others.items()) {
      if (other != "type" || keyword == "$ref") return Beside(other, keyword, place);
    }
    const std::string below = PlaceBelow(place, keyword);
    if (values) return Values(keyword, value, others, place);
    if (keyword == "$ref") {
      if (!value.is_string()) return RefuseAt(below, "this is a text");
      return ReadSchema{Json{{keyword, value}}, graph_.AddReference(below, value.get<std::string>())};
    }
    if (!value.is_array() || value.empty()) return RefuseAt(below, "this is an array of one schema or more");
    if (keyword == "allOf" && value.size() > 1)
      return RefuseAt(below, "more than one schema in allOf is not supported");
    std::vector<std::string> types;
    if (others.contains("type")) {
      RUNAHEAD_ASSIGN_OR_RETURN(types, ReadTypes(others["type"].dump(), place));
    }
    Json schemas = Json::array();
    std::vector<int> nodes;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string own = PlaceBelow(below, absl::StrCat(i));
      RUNAHEAD_ASSIGN_OR_RETURN(const Json schema, OfTypes(value[i], types, own));
      RUNAHEAD_ASSIGN_OR_RETURN(ReadSchema read, Schema(schema, own));
      schemas.push_back(std::move(read.json));
      nodes.push_back(read.node);
    }
    if (keyword == "oneOf" && schemas.size() > kMaxOneOf) {
      return RefuseAt(
          below, absl::StrCat("more than ", kMaxOneOf, " schemas in oneOf are not supported; anyOf has no such limit"));
    }
    if (keyword == "oneOf" && !ExcludeEachOther(schemas.dump())) {
      return RefuseAt(below,
                      "it is not plain that no value is of two of these: they differ in type, in const or enum, or in "
                      "those of a property that all of them require; anyOf has no such limit");
    }
    const int node = graph_.AddAny(place, std::move(nodes));
    return ReadSchema{Json{{keyword == "oneOf" ? "anyOf" : keyword, std::move(schemas)}}, node};
  }

  // A schema of several, with the types that stand beside all of them; none: any.
  static absl::StatusOr<Json> OfTypes(Json schema, const std::vector<std::string>& types, const std::string& place) {
    if (types.empty()) return schema;
    if (schema.is_boolean() && schema.get<bool>()) return Json{{"type", types}};
    if (!schema.is_object()) return schema;
    std::vector<std::string> both = types;
    if (schema.contains("type")) {
      RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<std::string> own, ReadTypes(schema["type"].dump(), place));
      RUNAHEAD_ASSIGN_OR_RETURN(both, BothTypes(own, types, place));
    }
    schema["type"] = both.size() == 1 ? Json(both[0]) : Json(both);
    return schema;
  }

  absl::StatusOr<ReadSchema> Values(const std::string& keyword, const Json& value, const Json& others,
                                    const std::string& place) {
    const std::string below = PlaceBelow(place, keyword);
    if (keyword == "enum" && (!value.is_array() || value.empty()))
      return RefuseAt(below, "this is an array of one value or more");
    std::vector<std::string> types;
    if (others.contains("type")) {
      RUNAHEAD_ASSIGN_OR_RETURN(types, ReadTypes(others["type"].dump(), place));
    }
    for (const Json& one : keyword == "enum" ? value : Json::array({value})) {
      const bool typed =
          std::any_of(types.begin(), types.end(), [&](const std::string& t) { return IsTypeOf(one, t); });
      if (!types.empty() && !typed) return RefuseAt(below, "a value is not of the type beside it");
    }
    RUNAHEAD_RETURN_IF_ERROR(RefuseLargeIntegers(value.dump(), below));
    return ReadSchema{Json{{keyword, value}}, graph_.AddAll(place, {})};
  }

  // Of a schema without a form of its own. Where it has no type, it gets the one that its keywords are about.
  absl::StatusOr<ReadSchema> Typed(Json schema, const std::string& place) {
    if (schema.empty()) return ReadSchema{Json::object(), graph_.AddAll(place, {})};
    std::vector<std::string> types;
    if (schema.contains("type")) {
      RUNAHEAD_ASSIGN_OR_RETURN(types, ReadTypes(schema["type"].dump(), place));
    } else {
      std::vector<std::string> keywords;
      for (const auto& [keyword, unused] : schema.items()) keywords.push_back(keyword);
      RUNAHEAD_ASSIGN_OR_RETURN(const std::string type, TypeOfKeywords(keywords, place));
      types.push_back(type);
    }
    Json choices = Json::array();
    std::vector<int> nodes;
    for (const std::string& type : types) {
      RUNAHEAD_ASSIGN_OR_RETURN(ReadSchema read, OfType(type, schema, place));
      choices.push_back(std::move(read.json));
      nodes.push_back(read.node);
    }
    if (types.size() == 1) return ReadSchema{std::move(choices[0]), nodes[0]};
    return ReadSchema{Json{{"anyOf", std::move(choices)}}, graph_.AddAny(place, std::move(nodes))};
  }

  absl::StatusOr<ReadSchema> OfType(const std::string& type, const Json& schema, const std::string& place) {
    Json json = {{"type", type}};
    if (type == "object") return Object(schema, std::move(json), place);
    if (type == "array") return Array(schema, std::move(json), place);
    if (type == "string") RUNAHEAD_RETURN_IF_ERROR(String(schema, json, place));
    if (type == "integer" || type == "number") {
      RUNAHEAD_ASSIGN_OR_RETURN(const std::string read, ReadNumberSchema(schema.dump(), type == "integer", place));
      json = Json::parse(read);
    }
    return ReadSchema{std::move(json), graph_.AddAll(place, {})};
  }

  absl::StatusOr<ReadSchema> Object(const Json& schema, Json json, const std::string& place) {
    const Json properties = schema.value("properties", Json::object());
    if (!properties.is_object()) return RefuseAt(PlaceBelow(place, "properties"), "this is an object of schemas");
    if (properties.size() > kMaxProperties) {
      return RefuseAt(PlaceBelow(place, "properties"), absl::StrCat("these are more than ", kMaxProperties));
    }
    std::vector<int> nodes;
    Json read_properties = Json::object();
    for (const auto& [name, property] : properties.items()) {
      RUNAHEAD_ASSIGN_OR_RETURN(ReadSchema read, Schema(property, PlaceBelow(PlaceBelow(place, "properties"), name)));
      read_properties[name] = std::move(read.json);
      nodes.push_back(read.node);
    }
    const Json required = schema.value("required", Json::array());
    if (!required.is_array()) return RefuseAt(PlaceBelow(place, "required"), "this is an array of names");
    for (const Json& name : required) {
      if (!name.is_string()) return RefuseAt(PlaceBelow(place, "required"), "this is an array of names");
      if (properties.contains(name.get<std::string>())) continue;
      return RefuseAt(PlaceBelow(place, "required"),
                      absl::StrCat(QuotedName(name.get<std::string>()), " is none of the properties"));
    }
    if (!properties.empty()) json["properties"] = std::move(read_properties);
    if (!required.empty()) json["required"] = required;
    // Others' names could be those of properties, by escapes: beside properties there are none.
    const bool others = schema.contains("additionalProperties");
    const std::string below = PlaceBelow(place, "additionalProperties");
    if (!properties.empty() || (others && schema["additionalProperties"] == false)) {
      if (others && !schema["additionalProperties"].is_boolean()) {
        return RefuseAt(below, "beside properties, only true and false are supported; no others are written then");
      }
      json["additionalProperties"] = false;
    } else {
      RUNAHEAD_ASSIGN_OR_RETURN(ReadSchema read, Schema(others ? schema["additionalProperties"] : Json(true), below));
      json["additionalProperties"] = std::move(read.json);
      nodes.push_back(read.node);
    }
    return ReadSchema{std::move(json), graph_.AddAll(place, std::move(nodes))};
  }

  absl::StatusOr<ReadSchema> Array(const Json& schema, Json json, const std::string& place) {
    const Json first = schema.value("prefixItems", Json::array());
    const std::string below = PlaceBelow(place, "prefixItems");
    if (!first.is_array()) return RefuseAt(below, "this is an array of schemas");
    std::vector<int> nodes;
    for (size_t i = 0; i < first.size(); ++i) {
      RUNAHEAD_ASSIGN_OR_RETURN(ReadSchema read, Schema(first[i], PlaceBelow(below, absl::StrCat(i))));
      json["prefixItems"].push_back(std::move(read.json));
      nodes.push_back(read.node);
    }
    const Json items = schema.contains("items") ? schema["items"] : Json(first.empty());
    if (items == false) {
      json["items"] = false;
    } else {
      RUNAHEAD_ASSIGN_OR_RETURN(ReadSchema read, Schema(items, PlaceBelow(place, "items")));
      json["items"] = std::move(read.json);
      nodes.push_back(read.node);
    }
    RUNAHEAD_ASSIGN_OR_RETURN(const Counts counts, ReadCounts(schema, "minItems", "maxItems", place));
    const auto named = static_cast<int64_t>(first.size());
    if ((counts.most && *counts.most < named) || (items == false && counts.least > named)) {
      return RefuseAt(place, "the number of items does not go with prefixItems and items");
    }
    if (counts.least > 0) json["minItems"] = counts.least;
    if (counts.most) json["maxItems"] = *counts.most;
    RUNAHEAD_RETURN_IF_ERROR(Spend(counts.most.value_or(counts.least) / kItemsShare, place));
    return ReadSchema{std::move(json), graph_.AddAll(place, std::move(nodes))};
  }

  struct Counts {
    int64_t least = 0;
    std::optional<int64_t> most;
  };

  static absl::StatusOr<Counts> ReadCounts(const Json& schema, const char* least, const char* most,
                                           const std::string& place) {
    Counts counts;
    for (const char* keyword : {least, most}) {
      if (!schema.contains(keyword)) continue;
      const Json& value = schema[keyword];
      const bool allowed = value.is_number_integer() && value >= 0 && value <= kMaxCount;
      if (!allowed) return RefuseAt(PlaceBelow(place, keyword), absl::StrCat("this is a number from 0 to ", kMaxCount));
      if (keyword == least) counts.least = value.get<int64_t>();
      if (keyword == most) counts.most = value.get<int64_t>();
    }
    if (counts.most && *counts.most < counts.least) {
      return RefuseAt(place, absl::StrCat(QuotedName(most), " is less than ", QuotedName(least)));
    }
    return counts;
  }

  absl::Status String(const Json& schema, Json& json, const std::string& place) {
    RUNAHEAD_ASSIGN_OR_RETURN(const Counts counts, ReadCounts(schema, "minLength", "maxLength", place));
    std::string form;
    for (const char* keyword : {"pattern", "format"}) {
      if (!schema.contains(keyword)) continue;
      if (!form.empty()) return Beside(keyword, form, place);
      if (counts.least > 0 || counts.most) return Beside(counts.most ? "maxLength" : "minLength", keyword, place);
      if (!schema[keyword].is_string()) return RefuseAt(PlaceBelow(place, keyword), "this is a text");
      form = keyword;
    }
    if (form == "pattern") return Pattern(schema[form].get<std::string>(), json, PlaceBelow(place, form));
    if (form == "format") return Format(schema[form].get<std::string>(), json, PlaceBelow(place, form));
    if (counts.least > 0) json["minLength"] = counts.least;
    if (counts.most) json["maxLength"] = *counts.most;
    return SpendLength(counts, place);
  }

  // What lengths cost is measured: by their characters up to xgrammar's 128, then as much again and no more. Those of
  // schemas that are alike are compiled once.
  absl::Status SpendLength(const Counts& counts, const std::string& place) {
    const int64_t longest = counts.most.value_or(counts.least);
    if (!lengths_.insert({counts.least, counts.most.value_or(-1)}).second) return absl::OkStatus();
    return Spend(longest <= 128 ? longest * 3 / 2 : 350, place);
  }

  absl::Status Format(const std::string& name, Json& json, const std::string& place) {
    const SchemaFormat* const format = FindSchemaFormat(name);
    if (format == nullptr) {
      const std::string all =
          absl::StrJoin(SchemaFormats(), ", ", [](std::string* to, const SchemaFormat& one) { *to += one.name; });
      return RefuseAt(place, absl::StrCat("the format ", QuotedName(name), " is not supported; these are: ", all));
    }
    if (!format->expression.empty()) return Pattern(format->expression, json, place);
    json["format"] = name;
    return Spend(100, place);
  }

  absl::Status Pattern(const std::string& pattern, Json& json, const std::string& place) {
    const absl::StatusOr<RegexForm> form = ReadRegex(pattern, RegexText::kJsonString);
    if (!form.ok()) return RefuseAt(place, form.status().message());
    json["pattern"] = form->text;
    return Spend(form->written, place);
  }

  FormGraph graph_;
  int64_t written_ = 0;
  std::set<std::pair<int64_t, int64_t>> lengths_;  // that were counted
};

}  // namespace

absl::StatusOr<std::string> ReadJsonSchema(const std::string& text) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return absl::InvalidArgumentError("it is no JSON");
  RUNAHEAD_RETURN_IF_ERROR(RefuseDoubledNames(text));
  return SchemaReader().Read(root);
}

}  // namespace runahead
