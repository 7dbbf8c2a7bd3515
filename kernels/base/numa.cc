#include "kernels/base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace runahead {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "0-3,8": 0, 1, 2, 3, 8. Empty for what is none.
std::vector<int> ParseList(const std::string& text) {
  std::vector<int> numbers;
  for (const auto& range : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) || first < 0 ||
        last >= CPU_SETSIZE) {
      return {};
    }
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

absl::Status SystemSays(const char* what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

std::optional<NumaNode> NumaNodeOfPciDevice(const std::string& address, const std::string& sysfs) {
  const std::string nodes = absl::StrCat(sysfs, "/devices/system/node");
  if (ParseList(FirstLine(absl::StrCat(nodes, "/online"))).size() < 2) return std::nullopt;
  NumaNode node;
  const std::string number = FirstLine(absl::StrCat(sysfs, "/bus/pci/devices/", address, "/numa_node"));
  if (!absl::SimpleAtoi(number, &node.number) || node.number < 0) return std::nullopt;
  node.cpus = ParseList(FirstLine(absl::StrCat(nodes, "/node", node.number, "/cpulist")));
  if (node.cpus.empty()) return std::nullopt;  // a node of memory only
  return node;
}

absl::Status StayOnNumaNode(const NumaNode& node) {
  cpu_set_t allowed, near;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return SystemSays("asking for the CPUs that are allowed");
  CPU_ZERO(&near);
  for (const int cpu : node.cpus) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &near);
  }
  if (CPU_COUNT(&near) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("none of the CPUs of NUMA node ", node.number, " is allowed to this process"));
  }
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(static_cast<size_t>(node.number / kBits + 1));
  mask.back() = 1UL << (node.number % kBits);
  // The kernel reads one bit less than it is told.
  if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), mask.size() * kBits + 1) != 0) {
    return SystemSays("preferring the memory of the device's NUMA node");
  }
  if (sched_setaffinity(0, sizeof(near), &near) != 0) {
    const absl::Status status = SystemSays("running on the CPUs of the device's NUMA node");
    syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
    return status;
  }
  return absl::OkStatus();
}

}  // namespace runahead
