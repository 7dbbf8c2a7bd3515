#include "server/base/cpu_limit.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr int64_t kMostFileBytes = 1 << 16;  // of a file here; the kernel's are far shorter

using Limit = std::optional<double>;

Limit Less(Limit a, Limit b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() ? a : b;
  return std::min(*a, *b);
}

Limit Share(absl::string_view quota, absl::string_view period) {
  double quota_us = 0, period_us = 0;
  if (!absl::SimpleAtod(quota, &quota_us) || !absl::SimpleAtod(period, &period_us)) return std::nullopt;
  if (quota_us <= 0 || period_us <= 0) return std::nullopt;  // -1: no limit
  return quota_us / period_us;
}

std::vector<std::string> WordsOf(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMostFileBytes);
  if (!text.ok()) return {};
  return absl::StrSplit(*text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

// "200000 100000", or "max 100000" where there is no limit.
Limit V2LimitOf(const std::string& folder) {
  const std::vector<std::string> words = WordsOf(folder + "/cpu.max");
  return words.size() == 2 ? Share(words[0], words[1]) : std::nullopt;
}

Limit V1LimitOf(const std::string& folder) {
  const std::vector<std::string> quota = WordsOf(folder + "/cpu.cfs_quota_us");
  const std::vector<std::string> period = WordsOf(folder + "/cpu.cfs_period_us");
  return quota.size() == 1 && period.size() == 1 ? Share(quota[0], period[0]) : std::nullopt;
}

// The least limit from the group at `path` up to the top of what is mounted. In a container the path may be the host's,
// of which only the top is there: folders that are not say nothing.
Limit LeastUpwards(const std::string& mount, absl::string_view path, Limit (*limit_of)(const std::string&)) {
  const std::vector<std::string> steps = absl::StrSplit(path, '/', absl::SkipEmpty());
  Limit least = limit_of(mount);
  std::string folder = mount;
  for (const std::string& step : steps) {
    if (step == "..") return least;  // outside of what this process sees
    absl::StrAppend(&folder, "/", step);
    least = Less(least, limit_of(folder));
  }
  return least;
}

int AllowedCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // It fails on machines with more CPUs than fit.
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

std::optional<double> CgroupCpuLimit(const std::string& root) {
  const absl::StatusOr<std::string> groups = ReadTextFile(root + "/proc/self/cgroup", kMostFileBytes);
  if (!groups.ok()) return std::nullopt;
  const std::string mounted = root + "/sys/fs/cgroup";
  Limit least;
  for (const absl::string_view line : absl::StrSplit(*groups, '\n', absl::SkipEmpty())) {
    // "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (fields[1].empty()) {
      least = Less(least, LeastUpwards(mounted, fields[2], V2LimitOf));
    } else if (std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end()) {
      least = Less(least, LeastUpwards(absl::StrCat(mounted, "/", fields[1]), fields[2], V1LimitOf));
    }
  }
  return least;
}

int UsableCores() {
  const int allowed = AllowedCores();
  const std::optional<double> limit = CgroupCpuLimit("");
  if (!limit.has_value() || *limit >= allowed) return allowed;
  return std::max(1, static_cast<int>(std::ceil(*limit)));
}

}  // namespace runahead
