// Places in the schema of a forced call, as the tools' parameters have them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace runahead {

// What DefineArguments changed: alternatives that allow no object are left out, and definitions may be made anew.
struct ToolPlaces {
  // By the place of an array of which something is left out, "/$defs/tool0/anyOf": where each of the rest stood.
  std::map<std::string, std::vector<size_t>> kept = {};
  std::map<std::string, std::string> made_of = {};  // definitions by those that were made of them
};

// `text` begins with a JSON pointer into the schema, up to its end or ": ". The same text with the pointer into what
// came.
std::string GivenPlace(absl::string_view text, const ToolPlaces& places);

}  // namespace runahead
