#include "server/gateway/openai/forced_call.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using Json = nlohmann::ordered_json;

// Parameters' definitions stand at the root of the whole schema, each tool's below a name of its own.
class CallSchema {
 public:
  explicit CallSchema(ToolFormat format) : format_(std::move(format)) {}

  void Add(const std::string& name, Json parameters) {
    const std::string own = absl::StrCat("tool", calls_.size());
    for (const char* keyword : {"$defs", "definitions"}) {
      if (!parameters.is_object() || !parameters.contains(keyword) || !parameters[keyword].is_object()) continue;
      for (auto& [defined, schema] : parameters[keyword].items()) {
        Refer(schema, own);
        definitions_[absl::StrCat(own, ".", keyword[0] == '$' ? "" : "definitions.", defined)] = std::move(schema);
      }
      parameters.erase(keyword);
    }
    Refer(parameters, own);
    definitions_[own] = std::move(parameters);
    calls_.push_back(Call(name, own));
  }

  std::string Text() const {
    Json schema = calls_.size() == 1 ? calls_[0] : Json{{"anyOf", calls_}};
    schema["$defs"] = definitions_;
    return schema.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  bool empty() const { return calls_.empty(); }

 private:
  static Json ObjectOf(const std::vector<std::pair<std::string, Json>>& members) {
    Json object = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    for (const auto& [key, schema] : members) {
      object["properties"][key] = schema;
      object["required"].push_back(key);
    }
    return object;
  }

  // The object of a call as the model writes it.
  Json Call(const std::string& name, const std::string& own) const {
    Json call =
        ObjectOf({{format_.name_key, {{"const", name}}}, {format_.arguments_key, {{"$ref", "#/$defs/" + own}}}});
    if (!format_.nested) return call;
    if (!format_.typed) return ObjectOf({{"function", std::move(call)}});
    return ObjectOf({{"type", {{"const", "function"}}}, {"function", std::move(call)}});
  }

  // Makes references of a tool's schema those of the whole.
  static void Refer(Json& schema, const std::string& own) {
    if (schema.is_object() && schema.contains("$ref") && schema["$ref"].is_string()) {
      const std::string uri = schema["$ref"];
      for (const auto& [from, to] :
           {std::pair("#/$defs/", own + "."), std::pair("#/definitions/", own + ".definitions.")}) {
        if (absl::StartsWith(uri, from)) schema["$ref"] = absl::StrCat("#/$defs/", to, uri.substr(strlen(from)));
      }
      if (uri == "#") schema["$ref"] = "#/$defs/" + own;
    }
    if (!schema.is_structured()) return;
    for (Json& inside : schema) Refer(inside, own);
  }

  const ToolFormat format_;
  Json calls_ = Json::array();
  Json definitions_ = Json::object();
};

}  // namespace

absl::StatusOr<v1::Structure> ForcedCall(const std::string& tools, const std::optional<std::string>& name,
                                         const ToolFormat& format) {
  CallSchema schema(format);
  const Json all = Json::parse(tools, nullptr, /*allow_exceptions=*/false);
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string place = absl::StrCat("tools[", i, "].function");
    if (!all[i].is_object() || !all[i].contains("function") || !all[i]["function"].is_object()) {
      return InvalidField(place, "it is missing; a call of it cannot be forced");
    }
    const Json& function = all[i]["function"];
    if (!function.contains("name") || !function["name"].is_string()) {
      return InvalidField(absl::StrCat(place, ".name"), "it is missing; a call of it cannot be forced");
    }
    if (name.has_value() && function["name"] != *name) continue;
    schema.Add(function["name"], function.value("parameters", Json{{"type", "object"}}));
  }
  if (schema.empty()) {
    return InvalidField("tool_choice", absl::StrCat("\"", Printable(name.value_or("")), "\" is none of the tools"));
  }
  v1::Structure structure;
  structure.set_json_schema(schema.Text());
  structure.set_before(format.before);
  structure.set_behind(format.behind);
  return structure;
}

}  // namespace runahead
