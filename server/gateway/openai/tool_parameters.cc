#include "server/gateway/openai/tool_parameters.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

using Schema = nlohmann::ordered_json;

constexpr char kDefinition[] = "#/$defs/";

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

  // Nothing where no object is of it.
  std::optional<Schema> Of(Schema schema) {
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
      some = some && Hold(form, schema[form]);
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
    std::optional<Schema> held = Of(definitions_[name]);
    if (!held.has_value()) {
      known->second.reset();
    } else if (*held == definitions_[name]) {
      known->second = name;
    } else {
      definitions_[*known->second] = *std::move(held);
    }
    return known->second;
  }

  bool too_deep() const { return too_deep_; }  // what was returned is of no use

 private:
  // Leaves the objects of a keyword's value. False: there are none.
  bool Hold(absl::string_view keyword, Schema& value) {
    if (keyword == "const") return value.is_object();
    if (keyword == "$ref") return HoldReference(value);
    if (!value.is_array() || value.empty()) return true;  // it is refused by who compiles it
    Schema objects = Schema::array();
    for (const Schema& one : value) {
      std::optional<Schema> held = one;
      if (keyword != "enum") {
        held = Of(one);
      } else if (!one.is_object()) {
        held.reset();
      }
      if (held.has_value()) objects.push_back(*std::move(held));
    }
    const bool all = objects.size() == value.size();
    value = std::move(objects);
    return keyword == "allOf" ? all : !value.empty();
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
  int nested_ = 0;
  bool too_deep_ = false;
};

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
  if (*arguments == own || references.to_root()) {
    return ToolDefinitions{*arguments, definitions.dump(-1, ' ', false, Schema::error_handler_t::replace)};
  }
  // Nothing else is of the root as it was.
  definitions[own] = std::move(definitions[*arguments]);
  definitions.erase(*arguments);
  return ToolDefinitions{own, definitions.dump(-1, ' ', false, Schema::error_handler_t::replace)};
}

}  // namespace runahead
