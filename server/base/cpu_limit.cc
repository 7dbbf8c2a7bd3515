#include "server/base/cpu_limit.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "server/base/cgroup.h"

namespace runahead {
namespace {

CgroupLimit Share(absl::string_view quota, absl::string_view period) {
  double quota_us = 0, period_us = 0;
  if (!absl::SimpleAtod(quota, &quota_us) || !absl::SimpleAtod(period, &period_us)) return std::nullopt;
  if (quota_us <= 0 || period_us <= 0) return std::nullopt;  // -1: no limit
  return quota_us / period_us;
}

// "200000 100000", or "max 100000" where there is no limit.
CgroupLimit V2CpuLimit(const std::string& folder) {
  const std::vector<std::string> words = CgroupWords(folder + "/cpu.max");
  return words.size() == 2 ? Share(words[0], words[1]) : std::nullopt;
}

CgroupLimit V1CpuLimit(const std::string& folder) {
  const std::vector<std::string> quota = CgroupWords(folder + "/cpu.cfs_quota_us");
  const std::vector<std::string> period = CgroupWords(folder + "/cpu.cfs_period_us");
  return quota.size() == 1 && period.size() == 1 ? Share(quota[0], period[0]) : std::nullopt;
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
  return LeastCgroupLimit(root, "cpu", V1CpuLimit, V2CpuLimit);
}

int UsableCores() {
  const int allowed = AllowedCores();
  const std::optional<double> limit = CgroupCpuLimit("");
  if (!limit.has_value() || *limit >= allowed) return allowed;
  return std::max(1, static_cast<int>(std::ceil(*limit)));
}

}  // namespace runahead
