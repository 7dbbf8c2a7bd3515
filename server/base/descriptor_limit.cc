#include "server/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace runahead {
namespace {

// Beyond that it is a limit that nobody has set, as containers have. Some libraries go through all descriptors.
constexpr rlim_t kMost = 1 << 20;

rlimit Limits() {
  rlimit limits{kMost, kMost};
  getrlimit(RLIMIT_NOFILE, &limits);
  return limits;
}

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limits = Limits();
  const rlim_t wanted = std::min(limits.rlim_max, kMost);
  if (limits.rlim_cur >= wanted) return;
  limits.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limits);
}

int DescriptorLimit() {
  return static_cast<int>(std::min(Limits().rlim_cur, kMost));
}

int KeptDescriptors() {
  return std::clamp(DescriptorLimit() / 4, 16, 4096);
}

bool IsAmongTheLast(int fd, int kept) {
  return fd >= DescriptorLimit() - kept;
}

}  // namespace runahead
