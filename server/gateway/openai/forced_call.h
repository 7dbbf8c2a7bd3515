// A call of a tool that an answer has to be.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

// The form of an answer that is one call of `tools` (JSON: an array of them as the field has it) as a model writes it
// whose ToolFormatOf is `format`, "hermes" or "llama3". `name`: of that tool; nothing: of any. Arguments are as the
// tool's parameters have them. INVALID_ARGUMENT names the member: a tool without a name, or none of this one.
absl::StatusOr<v1::Structure> ForcedCall(const std::string& tools, const std::optional<std::string>& name,
                                         absl::string_view format);

}  // namespace runahead
