// The types of values that JSON schemas name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

// Whether `value` is of the type of this name, one of JSON schema's.
bool IsTypeOf(const nlohmann::ordered_json& value, absl::string_view type);

// Of "type" of the schema at `place`: one or more, none twice. INVALID_ARGUMENT names the place.
absl::StatusOr<std::vector<std::string>> ReadTypes(const nlohmann::ordered_json& value, const std::string& place);

// A schema of several, with the types that stand beside all of them; none: any. INVALID_ARGUMENT where none is left.
absl::StatusOr<nlohmann::ordered_json> OfTypes(nlohmann::ordered_json schema, const std::vector<std::string>& types,
                                               const std::string& place);

// The type that the keywords of a schema without one are about. INVALID_ARGUMENT where they are about two.
absl::StatusOr<std::vector<std::string>> TypesOfKeywords(const nlohmann::ordered_json& schema,
                                                         const std::string& place);

}  // namespace runahead
