// Hints for misspelt names.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace runahead {

// The candidate that `word` most likely means, or "" when none is near (a third of its letters wrong, at least 2).
std::string ClosestName(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace runahead
