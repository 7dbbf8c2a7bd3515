// What JSON schemas say of numbers.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace runahead {

// The JSON of a schema of this type with the bounds and multipleOf that `schema`, JSON of an object, has at `place`.
absl::StatusOr<std::string> ReadNumberSchema(const std::string& schema, bool integer, const std::string& place);

}  // namespace runahead
