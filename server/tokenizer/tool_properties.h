// Tools for templates that go through the properties of each tool without asking whether there are any.
#pragma once

#include <optional>

#include "server/tokenizer/jinja/value.h"

namespace runahead {

// The same list of tools, where what has no `parameters.properties` has an empty dict of them, and `parameters` without
// a type are of an object. Nothing where all have some, or where it is no list. Takes time by what stands in the tools
// themselves and in their parameters, not by what stands below these.
std::optional<jinja::Value> ToolsWithProperties(const jinja::Value& tools);

}  // namespace runahead
