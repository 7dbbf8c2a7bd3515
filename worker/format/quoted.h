// Names that come from a file, in messages.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

// In quotes, escaped, and cut where it is long.
std::string Quoted(absl::string_view name);

}  // namespace runahead
