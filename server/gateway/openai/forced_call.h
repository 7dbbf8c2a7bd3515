// A call of a tool that an answer has to be.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/tool_format.h"
#include "server/gateway/openai/tool_members.h"
#include "server/gateway/openai/tool_places.h"

namespace runahead {

struct ForcedForm {
  v1::Structure structure;
  ToolPlaces places;  // of its schema
};

// The form of an answer that is one call of one of `tools`, of which the first is the request's tools[first], as a
// model of that format writes it. Arguments are objects that the tool's parameters accept; without parameters, any
// objects. INVALID_ARGUMENT names the member where no object can be, or where parameters are far too long for a form.
absl::StatusOr<ForcedForm> ForcedCall(absl::Span<const GivenTool> tools, int first, const ToolFormat& format);

}  // namespace runahead
