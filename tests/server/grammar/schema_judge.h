// Judges JSON by a JSON schema, by the words of the standard, for tests of what was written by one.
#pragma once

#include <string>

namespace runahead {

// Whether `text` is JSON that `schema`, which is a good one, accepts. Throws what nlohmann::json throws.
bool AcceptedBySchema(const std::string& schema, const std::string& text);

}  // namespace runahead
