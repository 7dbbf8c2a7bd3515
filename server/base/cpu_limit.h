// How many cores this process may use: what it starts threads by where nobody says how many.
#pragma once

#include <optional>
#include <string>

namespace runahead {

// The CPU limit of this process's cgroup in cores, the least of it and of those above it: cpu.max of version 2,
// cpu.cfs_quota_us of version 1. Nothing where there is none, or it cannot be read. `root` is where /proc and
// /sys/fs/cgroup lie: "" but in tests.
std::optional<double> CgroupCpuLimit(const std::string& root);

// The cores that the affinity mask allows, or the cgroup's limit, rounded up, where that is less. At least 1. Reads
// files: for the start.
int UsableCores();

}  // namespace runahead
