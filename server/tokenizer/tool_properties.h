// Tools for templates that go through the properties of each tool without asking whether there are any.
#pragma once

#include <string>

namespace runahead {

// The same JSON array of tools, where what has no `parameters.properties` has an empty object of them, and `parameters`
// without a type are of an object. As it came where all have some, or where it is no such array.
std::string ToolsWithProperties(const std::string& tools);

}  // namespace runahead
