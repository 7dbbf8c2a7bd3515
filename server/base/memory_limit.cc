#include "server/base/memory_limit.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "server/base/cgroup.h"

namespace runahead {
namespace {

constexpr int64_t kNoMemoryLimit = int64_t{1} << 60;  // version 1 says "none" by a number of bytes that no machine has

// Whole bytes, or "max".
CgroupLimit BytesIn(const std::string& path) {
  const std::vector<std::string> words = CgroupWords(path);
  int64_t bytes = 0;
  if (words.size() != 1 || !absl::SimpleAtoi(words[0], &bytes) || bytes <= 0 || bytes >= kNoMemoryLimit) {
    return std::nullopt;
  }
  return static_cast<double>(bytes);
}

CgroupLimit V2MemoryLimit(const std::string& folder) {
  return BytesIn(folder + "/memory.max");
}

CgroupLimit V1MemoryLimit(const std::string& folder) {
  return BytesIn(folder + "/memory.limit_in_bytes");
}

// `line` "MemTotal:" of /proc/meminfo: "MemTotal:       24689440 kB".
int64_t MachineMemory(const std::string& root, const char* line) {
  const std::vector<std::string> words = CgroupWords(root + "/proc/meminfo");
  const auto name = std::find(words.begin(), words.end(), line);
  int64_t kib = 0;
  if (words.end() - name < 2 || !absl::SimpleAtoi(*(name + 1), &kib)) return std::numeric_limits<int64_t>::max();
  return kib << 10;
}

}  // namespace

std::optional<int64_t> CgroupMemoryLimit(const std::string& root) {
  const CgroupLimit limit = LeastCgroupLimit(root, "memory", V1MemoryLimit, V2MemoryLimit);
  if (!limit.has_value()) return std::nullopt;
  return static_cast<int64_t>(*limit);
}

int64_t UsableMemory(const std::string& root) {
  const int64_t machine = MachineMemory(root, "MemTotal:");
  return std::min(machine, CgroupMemoryLimit(root).value_or(machine));
}

int64_t AvailableMemory(const std::string& root) {
  const int64_t machine = MachineMemory(root, "MemAvailable:");
  return std::min(machine, CgroupMemoryLimit(root).value_or(machine));
}

}  // namespace runahead
