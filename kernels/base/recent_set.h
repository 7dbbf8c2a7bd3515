// The last so many of what has ended, so that a late word about one of them leaves nothing new behind.
#pragma once

#include <cstddef>
#include <deque>

#include "absl/container/flat_hash_set.h"

namespace runahead {

// Forgets the oldest when there are more than `most`: what is forgotten has ended so long ago that nothing of it comes
// any more. Not thread-safe.
template <typename Key>
class RecentSet {
 public:
  explicit RecentSet(size_t most) : most_(most) {}

  void Add(const Key& key) {
    if (!keys_.insert(key).second) return;
    order_.push_back(key);
    if (order_.size() <= most_) return;
    keys_.erase(order_.front());
    order_.pop_front();
  }
  bool contains(const Key& key) const { return keys_.contains(key); }

 private:
  const size_t most_;
  absl::flat_hash_set<Key> keys_;
  std::deque<Key> order_;  // the oldest first
};

}  // namespace runahead
