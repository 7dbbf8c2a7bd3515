// What JSON schemas say of numbers.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace runahead {

// The JSON of a schema of this type with the bounds and multipleOf that `schema`, JSON of an object, has at `place`.
absl::StatusOr<std::string> ReadNumberSchema(const std::string& schema, bool integer, const std::string& place);

// INVALID_ARGUMENT says the place of an integer that 64 bits with a sign do not hold, at any depth of `value`, JSON.
// The compiler writes such as the nearest double, which the schema does not accept.
absl::Status RefuseLargeIntegers(const std::string& value, const std::string& place);

}  // namespace runahead
