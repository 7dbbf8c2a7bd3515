#include "worker/kv/eviction_news.h"

#include <algorithm>

namespace runahead {

void EvictionNews::Evicted(uint64_t hash) {
  ring_.push_back({++serial_, hash});
  newest_[hash] = serial_;
  if (ring_.size() <= kMost) return;
  const auto oldest = newest_.find(ring_.front().hash);
  if (oldest != newest_.end() && oldest->second == ring_.front().serial) newest_.erase(oldest);
  ring_.pop_front();
}

void EvictionNews::Clear() {
  ring_.clear();
  newest_.clear();
  serial_ = 0;
}

EvictionNews::Some EvictionNews::Since(uint64_t serial, size_t most) const {
  Some some{.serial = serial_};
  auto at = std::upper_bound(ring_.begin(), ring_.end(), serial,
                             [](uint64_t heard, const One& one) { return heard < one.serial; });
  for (; at != ring_.end(); ++at) {
    const auto newest = newest_.find(at->hash);
    if (newest == newest_.end() || newest->second != at->serial) continue;
    if (some.hashes.size() == most) {
      some.serial = at->serial - 1;
      break;
    }
    some.hashes.push_back(at->hash);
  }
  return some;
}

}  // namespace runahead
