// Which generations of edges have ended.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "worker/link/edge.h"

namespace runahead {

// One thread, or under its owner's lock. Keeps a number for each peer process.
class EndedGenerations {
 public:
  void Add(const PeerKey& key) {
    uint32_t& last = last_[Process(key)];
    last = std::max(last, key.generation);
  }
  // Also of the generations before one that ended.
  bool Contains(const PeerKey& key) const {
    const auto found = last_.find(Process(key));
    return found != last_.end() && key.generation <= found->second;
  }

 private:
  static PeerKey Process(const PeerKey& key) { return {key.incarnation, key.epoch, 0}; }

  absl::flat_hash_map<PeerKey, uint32_t> last_;  // by the key with generation 0
};

}  // namespace runahead
