#include "server/tokenizer/tool_properties.h"

#include "nlohmann/json.hpp"

namespace runahead {
namespace {

using ToolJson = nlohmann::ordered_json;

bool Lacks(const ToolJson& object, const char* member) {
  const auto found = object.find(member);
  return found == object.end() || found->is_null();
}

// True where it changes.
bool AddProperties(ToolJson& tool) {
  if (!tool.is_object()) return false;
  ToolJson& function = tool.contains("function") && tool["function"].is_object() ? tool["function"] : tool;
  ToolJson& parameters = function["parameters"];
  if (!parameters.is_object()) parameters = ToolJson::object();
  if (!Lacks(parameters, "properties")) return false;
  if (Lacks(parameters, "type")) parameters["type"] = "object";
  parameters["properties"] = ToolJson::object();
  return true;
}

}  // namespace

std::string ToolsWithProperties(const std::string& tools) {
  ToolJson list = ToolJson::parse(tools, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return tools;
  bool any = false;
  for (ToolJson& tool : list) any = AddProperties(tool) || any;
  return any ? list.dump() : tools;
}

}  // namespace runahead
