// A call of a tool that an answer has to be.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/tool_format.h"

namespace runahead {

// The form of an answer that is one call of `tools` (JSON: an array of them as the field has it) as a model writes it
// of that format. `name`: of that tool; nothing: of any. Arguments are as the
// tool's parameters have them. INVALID_ARGUMENT names the member: a tool without a name, or none of this one.
absl::StatusOr<v1::Structure> ForcedCall(const std::string& tools, const std::optional<std::string>& name,
                                         const ToolFormat& format);

}  // namespace runahead
