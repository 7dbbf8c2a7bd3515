// The tools of a request, and what is said of calling them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/json_object.h"
#include "server/gateway/openai/json_slice.h"

namespace runahead {

// A function that the model may call.
struct GivenTool {
  std::string name;                     // not empty
  std::optional<JsonSlice> parameters;  // an object, true or false; none: the request says nothing of them
};

// Of an array, in its order. INVALID_ARGUMENT names the member of what is no function with a name of its own. What else
// stands in a tool is for the template.
absl::StatusOr<std::vector<GivenTool>> ReadToolList(JsonSlice tools);

// What tools and tool_choice say. The body outlives it.
struct ToolUse {
  std::vector<GivenTool> tools;  // that the model may call
  bool must_call = false;        // one of them
  int first = 0;                 // where the first of them stands in the request's tools; the others stand behind it
};

// Adds tools to the chat where the model may call them, as they came. INVALID_ARGUMENT names the member, also where it
// may not.
absl::StatusOr<ToolUse> ReadTools(JsonObject& body, v1::ChatMessages& chat);

}  // namespace runahead
