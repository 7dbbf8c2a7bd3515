// The limits that the kernel sets this process by its control groups, of version 1 and 2.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace runahead {

using CgroupLimit = std::optional<double>;  // nothing: no limit, or it cannot be read

// Reads the limit of the group whose folder is given.
using CgroupReader = CgroupLimit (*)(const std::string& folder);

// The least limit of this process's group and of those above it: `controller` ("cpu") is what version 1 calls what is
// limited. `root` is where /proc and /sys/fs/cgroup lie: "" but in tests.
CgroupLimit LeastCgroupLimit(const std::string& root, absl::string_view controller, CgroupReader version1,
                             CgroupReader version2);

// What a CgroupReader reads a file with: its words; none where it is not there.
std::vector<std::string> CgroupWords(const std::string& path);

}  // namespace runahead
