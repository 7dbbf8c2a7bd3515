#include "server/gateway/openai/forced_call.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "server/base/indexed_map.h"
#include "server/gateway/openai/tool_parameters.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using Json = nlohmann::basic_json<IndexedMap>;

// Of tools, with blanks. The router takes forms of 64 KiB without them; to make one of far more takes long.
constexpr size_t kMostBytes = size_t{128} << 10;
constexpr size_t kLeastBytes = 100;  // of what the form has of each tool beside its name and parameters

// Parameters' definitions stand at the root of the whole schema, each tool's below a name of its own.
class CallSchema {
 public:
  explicit CallSchema(ToolFormat format) : format_(std::move(format)) {}

  absl::Status Add(const GivenTool& tool) {
    const std::string own = absl::StrCat("tool", calls_.size());
    const absl::string_view parameters = tool.parameters.has_value() ? tool.parameters->text() : "true";
    RUNAHEAD_ASSIGN_OR_RETURN(ToolDefinitions defined, DefineArguments(parameters, own));
    calls_.push_back(Call(tool.name, defined.arguments));
    // No two have the same names, so that they need not be read again.
    const absl::string_view members = absl::string_view(defined.definitions).substr(1, defined.definitions.size() - 2);
    absl::StrAppend(&definitions_, definitions_.empty() ? "" : ",", members);
    places_.kept.merge(std::move(defined.places.kept));
    places_.made_of.merge(std::move(defined.places.made_of));
    return absl::OkStatus();
  }

  ForcedForm Form() && {
    const Json calls = calls_.size() == 1 ? calls_[0] : Json{{"anyOf", calls_}};
    const std::string text = calls.dump(-1, ' ', false, Json::error_handler_t::replace);
    ForcedForm form;
    form.structure.set_json_schema(absl::StrCat(text.substr(0, text.size() - 1), ",\"$defs\":{", definitions_, "}}"));
    form.structure.set_before(format_.before);
    form.structure.set_behind(format_.behind);
    form.places = std::move(places_);
    return form;
  }

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
  Json Call(const std::string& name, const std::string& arguments) const {
    Json call =
        ObjectOf({{format_.name_key, {{"const", name}}}, {format_.arguments_key, {{"$ref", "#/$defs/" + arguments}}}});
    if (!format_.nested) return call;
    if (!format_.typed) return ObjectOf({{"function", std::move(call)}});
    return ObjectOf({{"type", {{"const", "function"}}}, {"function", std::move(call)}});
  }

  const ToolFormat format_;
  Json calls_ = Json::array();
  std::string definitions_;  // members of an object, as JSON
  ToolPlaces places_;
};

}  // namespace

absl::StatusOr<ForcedForm> ForcedCall(absl::Span<const GivenTool> tools, int first, const ToolFormat& format) {
  CallSchema schema(format);
  size_t bytes = 0;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = absl::StrCat("tools[", static_cast<size_t>(first) + i, "].function.parameters");
    bytes += kLeastBytes + tools[i].name.size();
    if (tools[i].parameters.has_value()) bytes += tools[i].parameters->text().size();
    if (bytes > kMostBytes) {
      return InvalidField(place, absl::StrCat("the tools up to this one have more than ", kMostBytes,
                                              " bytes; a call of one of so many cannot be forced"));
    }
    const absl::Status added = schema.Add(tools[i]);
    if (!added.ok()) return InvalidField(place, added.message());
  }
  return std::move(schema).Form();
}

}  // namespace runahead
