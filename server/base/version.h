// The version of the build.
#pragma once

#include "absl/strings/string_view.h"

namespace runahead {

// "0.1.0", as the root CMakeLists.txt says.
absl::string_view Version();

}  // namespace runahead
