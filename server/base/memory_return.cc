#include "server/base/memory_return.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace runahead {
namespace {

constexpr absl::Duration kLookPeriod = absl::Seconds(5);
// Less is not worth the time: giving back takes some 100 us for each MiB that is resident.
constexpr size_t kWorthIt = size_t{2} << 20;

// From here on a block is large, and the end of a heap not kept. glibc would raise both to 32 and 64 MiB by itself, and
// gives back no end of a heap but the first one's when it is asked to.
constexpr int kLargeBytes = 256 << 10;

size_t BytesInUse() {
  std::ifstream statm("/proc/self/statm");
  size_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

MemoryReturn::MemoryReturn() {
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);
  mallopt(M_TRIM_THRESHOLD, kLargeBytes);
}

void MemoryReturn::Poll(absl::Time now) {
  if (now < look_at_) return;
  look_at_ = now + kLookPeriod;
  const size_t free = mallinfo2().fordblks;
  least_free_ = std::min(least_free_, free);
  // Either it was used and freed between two looks, or it was seen in use.
  const bool grown = free >= kWorthIt && BytesInUse() >= resident_after_ + kWorthIt;
  if (!grown && free < least_free_ + kWorthIt) return;
  malloc_trim(0);
  ++returned_;
  least_free_ = mallinfo2().fordblks;
  resident_after_ = BytesInUse();
}

}  // namespace runahead
