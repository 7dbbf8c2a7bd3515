#include "server/gateway/openai/tool_members.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/grammar/schema_doubles.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr char kToolChoices[] = "\"auto\", \"none\", \"required\" or the name of a tool";

struct ToolChoice {
  bool may_call = false;
  bool must_call = false;
  std::optional<std::string> name = {};  // with must_call: of the tool to call; none: any
};

// {"type": "function", "function": {"name"}}.
absl::StatusOr<ToolChoice> ReadNamedTool(JsonSlice value) {
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject choice, JsonObject::Read(value, "tool_choice"));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<std::string> type, choice.String("type"));
  const std::optional<JsonSlice> named = choice.Find("function");
  if (type.value_or("function") != "function" || !named.has_value()) {
    return InvalidField("tool_choice", "it names no function");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject function, JsonObject::Read(*named, "tool_choice.function"));
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> name, function.String("name"));
  if (!name.has_value()) return InvalidField("tool_choice.function.name", "it is missing");
  return ToolChoice{.may_call = true, .must_call = true, .name = std::move(name)};
}

absl::StatusOr<ToolChoice> ReadToolChoice(JsonObject& body) {
  const std::optional<JsonSlice> choice = body.Find("tool_choice");
  if (!choice.has_value()) return ToolChoice{.may_call = true};
  if (choice->kind() == JsonSlice::Kind::kObject) return ReadNamedTool(*choice);
  if (choice->kind() != JsonSlice::Kind::kString) return body.Wrong("tool_choice", *choice, kToolChoices);
  const std::string name = choice->String();
  if (name == "auto" || name == "none" || name == "required") {
    return ToolChoice{.may_call = name != "none", .must_call = name == "required"};
  }
  return InvalidField("tool_choice",
                      absl::StrCat("\"", Printable(name), "\" is not supported here; ", kToolChoices, " is allowed"));
}

// A tool without a type is a function, as at vLLM's door.
absl::Status CheckToolType(JsonObject& tool) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<std::string> type, tool.String("type"));
  if (type.value_or("function") == "function") return absl::OkStatus();
  return InvalidField(tool.PlaceOf("type"),
                      absl::StrCat("\"", Printable(*type), "\" is not supported here; \"function\" is allowed"));
}

absl::StatusOr<GivenTool> ReadTool(JsonSlice value, std::string place) {
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject tool, JsonObject::Read(value, std::move(place)));
  RUNAHEAD_RETURN_IF_ERROR(CheckToolType(tool));
  const std::optional<JsonSlice> described = tool.Find("function");
  if (!described.has_value()) return InvalidField(tool.PlaceOf("function"), "it is missing");
  RUNAHEAD_ASSIGN_OR_RETURN(JsonObject function, JsonObject::Read(*described, tool.PlaceOf("function")));
  RUNAHEAD_ASSIGN_OR_RETURN(std::optional<std::string> name, function.String("name"));
  if (!name.has_value()) return InvalidField(function.PlaceOf("name"), "it is missing");
  if (name->empty()) return InvalidField(function.PlaceOf("name"), "it is empty");
  RUNAHEAD_RETURN_IF_ERROR(function.String("description").status());
  const std::optional<JsonSlice> parameters = function.Find("parameters");
  if (!parameters.has_value()) return GivenTool{*std::move(name), std::nullopt};
  if (parameters->kind() != JsonSlice::Kind::kObject && parameters->kind() != JsonSlice::Kind::kBool) {
    return function.Wrong("parameters", *parameters, "a JSON schema");
  }
  const absl::Status names = RefuseDoubledNames(parameters->text());
  if (!names.ok()) return InvalidField(function.PlaceOf("parameters"), names.message());
  return GivenTool{*std::move(name), parameters};
}

// Leaves those that `choice` lets the model call.
absl::Status KeepChosen(const ToolChoice& choice, ToolUse& use) {
  use.must_call = choice.must_call;
  if (!choice.may_call) use.tools.clear();
  if (!choice.name.has_value()) return absl::OkStatus();
  for (size_t i = 0; i < use.tools.size(); ++i) {
    if (use.tools[i].name != *choice.name) continue;
    use.first = static_cast<int>(i);
    use.tools = {use.tools[i]};
    return absl::OkStatus();
  }
  return InvalidField("tool_choice", absl::StrCat("\"", Printable(*choice.name), "\" is none of the tools"));
}

}  // namespace

absl::StatusOr<std::vector<GivenTool>> ReadToolList(JsonSlice tools) {
  std::vector<GivenTool> list;
  std::map<std::string, size_t> places;
  const auto add = [&list, &places](JsonSlice value) -> absl::Status {
    const std::string place = absl::StrCat("tools[", list.size(), "]");
    RUNAHEAD_ASSIGN_OR_RETURN(GivenTool tool, ReadTool(value, place));
    const auto [first, is_new] = places.emplace(tool.name, list.size());
    if (!is_new) {
      return InvalidField(
          absl::StrCat(place, ".function.name"),
          absl::StrCat("\"", Printable(tool.name), "\" is the name of tools[", first->second, "], too"));
    }
    list.push_back(std::move(tool));
    return absl::OkStatus();
  };
  RUNAHEAD_RETURN_IF_ERROR(tools.ForElements(add));
  return list;
}

absl::StatusOr<ToolUse> ReadTools(JsonObject& body, v1::ChatMessages& chat) {
  RUNAHEAD_ASSIGN_OR_RETURN(const ToolChoice choice, ReadToolChoice(body));
  ToolUse use;
  const std::optional<JsonSlice> tools = body.Find("tools");
  if (tools.has_value()) {
    if (tools->kind() != JsonSlice::Kind::kArray) return body.Wrong("tools", *tools, "an array of tools");
    RUNAHEAD_ASSIGN_OR_RETURN(use.tools, ReadToolList(*tools));
  }
  if (use.tools.empty() && choice.must_call) return InvalidField("tool_choice", "there are no tools to call");
  RUNAHEAD_RETURN_IF_ERROR(KeepChosen(choice, use));
  if (!use.tools.empty()) chat.set_tools(std::string(tools->text()));
  return use;
}

}  // namespace runahead
