// The version of the build.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace runahead {

// "0.1.0", as the root CMakeLists.txt says.
absl::string_view Version();

// The version and the running program's build id, as the linker wrote it into the binary: "0.1.0 f06437bd582d". Equal
// ones are the same code from the same compiler. The version alone where there is no build id.
std::string BuildId();

}  // namespace runahead
