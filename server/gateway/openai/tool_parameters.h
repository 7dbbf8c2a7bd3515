// A tool's parameters as a part of the schema of a forced call.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/gateway/openai/tool_places.h"

namespace runahead {

struct ToolDefinitions {
  std::string arguments;    // the definition that the tool's arguments are of
  std::string definitions;  // that and those that it needs: the members of an object, as JSON
  ToolPlaces places;        // of these
};

// `parameters` is JSON, a schema. Of its root, of its definitions and of these in "definitions" come definitions named
// `own`, "own.NAME" and "own_definitions.NAME"; its references follow. Arguments are what of the root is an object: of
// alternatives those that are, and so behind its references, if need be by further definitions ("own_objects",
// "own.NAME_objects"). What is no schema stays as it is: who compiles the whole refuses it by its place.
// Takes time by the length of it, however many names an
// object has. INVALID_ARGUMENT, without a field, where no object is of the schema, or a definition has a name that a
// form cannot have.
absl::StatusOr<ToolDefinitions> DefineArguments(absl::string_view parameters, const std::string& own);

}  // namespace runahead
