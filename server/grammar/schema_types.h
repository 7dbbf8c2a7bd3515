// The types of values that JSON schemas name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace runahead {

// Of "type", JSON, of the schema at `place`: one or more, none twice. INVALID_ARGUMENT names the place.
absl::StatusOr<std::vector<std::string>> ReadTypes(const std::string& value, const std::string& place);

// The types of a schema that stands below others. INVALID_ARGUMENT where no value is of both.
absl::StatusOr<std::vector<std::string>> BothTypes(const std::vector<std::string>& own,
                                                   const std::vector<std::string>& others, const std::string& place);

// The type that these keywords of a schema without one are about. INVALID_ARGUMENT where they are about two.
absl::StatusOr<std::string> TypeOfKeywords(const std::vector<std::string>& keywords, const std::string& place);

}  // namespace runahead
