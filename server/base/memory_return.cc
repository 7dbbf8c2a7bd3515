#include "server/base/memory_return.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

namespace runahead {
namespace {

constexpr absl::Duration kLookPeriod = absl::Seconds(5);
// Less is not worth the time: giving back takes some 100 us for each MiB that is resident.
constexpr int64_t kWorthIt = int64_t{2} << 20;
// Where much is idle that was not before, it may have been kept by so little: a block keeps the page in which it lies.
constexpr int64_t kThinned = 64 << 10;

// From here on a block is large, and the end of a heap not kept. glibc would raise both to 32 and 64 MiB by itself, and
// gives back no end of a heap but the first one's when it is asked to.
constexpr int kLargeBytes = 256 << 10;

// Heaps that threads share, in place of eight for each core: each keeps pages and an end of its own. With sixteen of
// them up to 24 MiB stayed of a flood, with four less than 1 MiB; threads have their own caches of small blocks anyway.
constexpr int kHeaps = 4;

constexpr int kTries = 3;

int64_t GivenOutBytes() {
  const struct mallinfo2 used = mallinfo2();
  return static_cast<int64_t>(used.uordblks + used.hblkhd);
}

int64_t OwnMemoryBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0, shared_pages = 0;
  statm >> total_pages >> resident_pages >> shared_pages;
  return (resident_pages - shared_pages) * sysconf(_SC_PAGESIZE);
}

}  // namespace

MemoryReturn::MemoryReturn() : MemoryReturn(Heap{GivenOutBytes, OwnMemoryBytes, [] { malloc_trim(0); }}) {
  mallopt(M_ARENA_MAX, kHeaps);
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);
  mallopt(M_TRIM_THRESHOLD, kLargeBytes);
}

MemoryReturn::MemoryReturn(Heap heap) : heap_(std::move(heap)) {
  Remember();
}

// Idle is what the process's own memory takes beyond what is used: free blocks that were not given back, stacks, parts
// of pages. What malloc counts as free does not say it, for of that a part was given back.
void MemoryReturn::Poll(absl::Time now) {
  if (now < look_at_) return;
  look_at_ = now + kLookPeriod;
  const int64_t used = heap_.used();
  const int64_t idle = IdleBytes(used);
  most_used_ = std::max(most_used_, used);
  least_idle_ = std::min(least_idle_, idle);
  const bool much_freed = idle >= least_idle_ + kWorthIt;
  const bool more_than_ever = idle >= best_idle_ + kWorthIt;
  const bool thinned = more_than_ever && used <= most_used_ - kThinned;
  // Blocks that were taken and not touched count as used: they hide as much that idles.
  const bool hidden = idle <= best_idle_ - kWorthIt;
  if (!much_freed && !thinned && !hidden && !(more_than_ever && tries_left_ > 0)) return;
  heap_.trim();
  ++returned_;
  Remember();
  const bool much_came_of_it = much_freed || thinned || idle - least_idle_ >= kWorthIt;
  tries_left_ = much_came_of_it ? kTries : tries_left_ - 1;
}

void MemoryReturn::Remember() {
  most_used_ = heap_.used();
  least_idle_ = IdleBytes(most_used_);
  best_idle_ = std::min(best_idle_, least_idle_);
}

}  // namespace runahead
