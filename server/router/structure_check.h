// The form that a request asks for.
#pragma once

#include "absl/status/status.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

// Part of ValidateRequest (validation.h). UNIMPLEMENTED where this build has no structured output.
absl::Status CheckStructureOf(const v1::GenerateRequest& request);

}  // namespace runahead
