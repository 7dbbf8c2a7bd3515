#include "server/gateway/openai/tool_parameters.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/indexed_map.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

using Schema = nlohmann::basic_json<IndexedMap>;

constexpr char kDefinition[] = "#/$defs/";

// The place of a definition, which its reference is behind the "#".
std::string PlaceOf(const std::string& definition) {
  return absl::StrCat(absl::string_view(kDefinition).substr(1), definition);
}

// Schemas in each other and behind references: far more than a form may have, and little for a thread's stack.
constexpr int kMostNested = 128;

// Makes references of a tool's schemas those of the whole, only where schemas stand: the same words may be names of
// properties, or stand in values. Schemas below other keywords are not supported, nor are they looked at.
class ToolReferences {
 public:
  explicit ToolReferences(const std::string& own) : own_(own) {}

  void Follow(Schema& schema) {
    if (!schema.is_object()) return;
    for (auto& [keyword, value] : schema.items()) {
      if (keyword == "$ref") {
        FollowOne(value);
      } else if (keyword == "items" || keyword == "additionalProperties") {
        Follow(value);
      } else if (keyword == "properties" || keyword == "prefixItems" || keyword == "anyOf" || keyword == "oneOf" ||
                 keyword == "allOf") {
        for (Schema& inside : value) Follow(inside);
      }
    }
  }

  bool to_root() const { return to_root_; }  // there was one

 private:
  void FollowOne(Schema& reference) {
    if (!reference.is_string()) return;
    const std::string uri = reference;
    if (uri == "#") {
      to_root_ = true;
      reference = kDefinition + own_;
    }
    for (const auto& [from, to] : {std::pair(kDefinition, "."), std::pair("#/definitions/", "_definitions.")}) {
      if (absl::StartsWith(uri, from)) reference = absl::StrCat(kDefinition, own_, to, uri.substr(strlen(from)));
    }
  }

  const std::string& own_;
  bool to_root_ = false;
};

constexpr absl::string_view kTypes[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

bool IsType(const Schema& type) {
  return type.is_string() &&
         std::find(std::begin(kTypes), std::end(kTypes), type.get<std::string>()) != std::end(kTypes);
}

bool IsTypes(const Schema& type) {
  if (!type.is_array()) return IsType(type);
  return !type.empty() && std::all_of(type.begin(), type.end(), IsType);
}

bool AllowsObjects(const Schema& type) {
  if (!type.is_array()) return type == "object";
  return std::find(type.begin(), type.end(), "object") != type.end();
}

// What of schemas are objects. References are those of `definitions`, which gets more where only some values of one
// are.
class ObjectSchemas {
 public:
  explicit ObjectSchemas(Schema& definitions) : definitions_(definitions) {}

  // Nothing where no object is of it. `place`: where it goes.
  std::optional<Schema> Of(Schema schema, const std::string& place) {
    if (schema.is_boolean()) return schema.get<bool>() ? std::optional(Schema{{"type", "object"}}) : std::nullopt;
    if (!schema.is_object()) return schema;
    if (nested_ == kMostNested) {
      too_deep_ = true;
      return schema;
    }
    if (schema.contains("type") && !IsTypes(schema["type"])) return schema;  // it is refused by who compiles it
    if (schema.contains("type") && !AllowsObjects(schema["type"])) return std::nullopt;
    ++nested_;
    bool some = true, typed = true;
    for (const char* form : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(form)) continue;
      some = some && Hold(form, schema[form], place);
      typed = false;  // a type beside it says no more
    }
    --nested_;
    if (!some) return std::nullopt;
    if (typed) {
      schema["type"] = "object";
    } else {
      schema.erase("type");
    }
    return schema;
  }

  // The name of a definition of the objects of this one; nothing where there are none.
  const std::optional<std::string>& OfDefinition(const std::string& name) {
    const auto [known, is_new] = held_.try_emplace(name);
    if (!is_new) return known->second;
    // Of a definition that refers to itself, while it is being looked at.
    known->second = NewName(name);
    std::optional<Schema> held = Of(definitions_[name], PlaceOf(*known->second));
    if (!held.has_value()) {
      known->second.reset();
    } else if (*held == definitions_[name]) {
      known->second = name;
    } else {
      places_.made_of[*known->second] = name;
      definitions_[*known->second] = *std::move(held);
    }
    return known->second;
  }

  bool too_deep() const { return too_deep_; }  // what was returned is of no use
  const ToolPlaces& places() const { return places_; }

 private:
  // Leaves the objects of a keyword's value. False: there are none.
  bool Hold(absl::string_view keyword, Schema& value, const std::string& schema_place) {
    if (keyword == "const") return value.is_object();
    if (keyword == "$ref") return HoldReference(value);
    if (!value.is_array() || value.empty()) return true;  // it is refused by who compiles it
    const std::string place = absl::StrCat(schema_place, "/", keyword);
    Schema objects = Schema::array();
    std::vector<size_t> kept;
    for (size_t i = 0; i < value.size(); ++i) {
      std::optional<Schema> held = value[i];
      if (keyword != "enum") {
        held = Of(value[i], absl::StrCat(place, "/", objects.size()));
      } else if (!value[i].is_object()) {
        held.reset();
      }
      if (!held.has_value()) {
        Forget(absl::StrCat(place, "/", objects.size(), "/"));
        continue;
      }
      objects.push_back(*std::move(held));
      kept.push_back(i);
    }
    const bool all = objects.size() == value.size();
    if (!all) places_.kept[place] = std::move(kept);
    value = std::move(objects);
    return keyword == "allOf" ? all : !value.empty();
  }

  // What was noted of a schema that is left out: another one may go there.
  void Forget(const std::string& below) {
    auto at = places_.kept.lower_bound(below);
    while (at != places_.kept.end() && absl::StartsWith(at->first, below)) at = places_.kept.erase(at);
  }

  bool HoldReference(Schema& reference) {
    if (!reference.is_string() || !absl::StartsWith(reference.get<std::string>(), kDefinition)) return true;
    const std::string name = reference.get<std::string>().substr(strlen(kDefinition));
    if (!definitions_.contains(name)) return true;  // it is refused by who compiles it
    const std::optional<std::string>& objects = OfDefinition(name);
    if (objects.has_value()) reference = kDefinition + *objects;
    return objects.has_value();
  }

  std::string NewName(const std::string& name) const {
    std::string is_new = name + "_objects";
    while (definitions_.contains(is_new)) is_new += '_';
    return is_new;
  }

  Schema& definitions_;
  std::map<std::string, std::optional<std::string>> held_;  // names of definitions by those of what they are made of
  ToolPlaces places_;
  int nested_ = 0;
  bool too_deep_ = false;
};

// The definition `from`, and all in it, goes to `to`.
void Rename(const std::string& from, const std::string& to, ToolPlaces& places) {
  places.made_of.erase(from);
  const std::string below = absl::StrCat(PlaceOf(from), "/");
  std::map<std::string, std::vector<size_t>> kept;
  for (auto& [place, indices] : places.kept) {
    const bool inside = absl::StartsWith(place, below);
    kept[inside ? absl::StrCat(PlaceOf(to), "/", place.substr(below.size())) : place] = std::move(indices);
  }
  places.kept = std::move(kept);
}

}  // namespace

absl::StatusOr<ToolDefinitions> DefineArguments(absl::string_view parameters, const std::string& own) {
  Schema root = Schema::parse(parameters.begin(), parameters.end(), nullptr, /*allow_exceptions=*/false);
  Schema definitions = Schema::object();
  ToolReferences references(own);
  for (const char* keyword : {"$defs", "definitions"}) {
    if (!root.is_object() || !root.contains(keyword) || !root[keyword].is_object()) continue;
    for (auto& [defined, schema] : root[keyword].items()) {
      if (defined.find_first_of("/~%") != std::string::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat("at /", keyword, ": the name \"", Printable(defined), "\" with /, ~ or % is not supported"));
      }
      references.Follow(schema);
      definitions[absl::StrCat(own, keyword[0] == '$' ? "." : "_definitions.", defined)] = std::move(schema);
    }
    root.erase(keyword);
  }
  references.Follow(root);
  definitions[own] = std::move(root);
  ObjectSchemas objects(definitions);
  const std::optional<std::string> arguments = objects.OfDefinition(own);
  if (objects.too_deep()) {
    return absl::InvalidArgumentError(
        absl::StrCat("with references, its schemas are nested deeper than ", kMostNested));
  }
  if (!arguments.has_value()) return absl::InvalidArgumentError("no object is of this schema; arguments are one");
  ToolDefinitions defined{*arguments, /*definitions=*/"", objects.places()};
  if (*arguments != own && !references.to_root()) {
    // Nothing else is of the root as it was.
    definitions[own] = std::move(definitions[*arguments]);
    definitions.erase(*arguments);
    Rename(*arguments, own, defined.places);
    defined.arguments = own;
  }
  defined.definitions = definitions.dump(-1, ' ', false, Schema::error_handler_t::replace);
  return defined;
}

}  // namespace runahead
