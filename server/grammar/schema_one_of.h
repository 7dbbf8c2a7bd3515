// Whether schemas leave each other out.
#pragma once

#include <string>

namespace runahead {

// Whether it is plain that no value is of two of `schemas`: the JSON of an array of them, in the form of ReadJsonSchema
// (schema_form.h).
bool ExcludeEachOther(const std::string& schemas);

}  // namespace runahead
