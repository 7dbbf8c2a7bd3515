// How much memory this process may use: what defaults of sizes are bounded by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace runahead {

// The memory limit of this process's cgroup in bytes, the least of it and of those above it: memory.max of version 2,
// memory.limit_in_bytes of version 1. Nothing where there is none, or it cannot be read. `root` is where /proc and
// /sys/fs/cgroup lie: "" but in tests.
std::optional<int64_t> CgroupMemoryLimit(const std::string& root);

// The machine's memory, or the cgroup's limit where that is less, in bytes; without swap, and whoever else uses it. The
// largest int64_t where the machine does not say. Reads files: for the start.
int64_t UsableMemory(const std::string& root = "");

// What of that nobody uses now, in bytes: the machine's available memory, or the cgroup's whole limit where that is
// less. The largest int64_t where the machine does not say.
int64_t AvailableMemory(const std::string& root = "");

}  // namespace runahead
