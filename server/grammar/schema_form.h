// JSON schemas: the part that can be promised, in a form that leaves nothing open.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace runahead {

// `text`, whose arrays and objects are not deep, as the compiler gets it: annotations are gone, every schema has its
// type, and what an object or array may have beside what is named is said. It accepts nothing that `text` does not.
// INVALID_ARGUMENT says at which place of `text`, a JSON pointer, what is not supported or allowed.
absl::StatusOr<std::string> ReadJsonSchema(const std::string& text);

}  // namespace runahead
