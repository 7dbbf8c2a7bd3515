#include "server/base/cgroup.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr int64_t kMostCgroupFileBytes = 1 << 16;  // the kernel's are far shorter

CgroupLimit Less(CgroupLimit a, CgroupLimit b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() ? a : b;
  return std::min(*a, *b);
}

// The least limit from the group at `path` up to the top of what is mounted. In a container the path may be the host's,
// of which only the top is there: folders that are not say nothing.
CgroupLimit LeastUpwards(const std::string& mount, absl::string_view path, CgroupReader limit_of) {
  const std::vector<std::string> steps = absl::StrSplit(path, '/', absl::SkipEmpty());
  CgroupLimit least = limit_of(mount);
  std::string folder = mount;
  for (const std::string& step : steps) {
    if (step == "..") return least;  // outside of what this process sees
    absl::StrAppend(&folder, "/", step);
    least = Less(least, limit_of(folder));
  }
  return least;
}

}  // namespace

std::vector<std::string> CgroupWords(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMostCgroupFileBytes);
  if (!text.ok()) return {};
  return absl::StrSplit(*text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

CgroupLimit LeastCgroupLimit(const std::string& root, absl::string_view controller, CgroupReader version1,
                             CgroupReader version2) {
  const absl::StatusOr<std::string> groups = ReadTextFile(root + "/proc/self/cgroup", kMostCgroupFileBytes);
  if (!groups.ok()) return std::nullopt;
  const std::string mounted = root + "/sys/fs/cgroup";
  CgroupLimit least;
  for (const absl::string_view line : absl::StrSplit(*groups, '\n', absl::SkipEmpty())) {
    // "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (fields[1].empty()) {
      least = Less(least, LeastUpwards(mounted, fields[2], version2));
    } else if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      least = Less(least, LeastUpwards(absl::StrCat(mounted, "/", fields[1]), fields[2], version1));
    }
  }
  return least;
}

}  // namespace runahead
