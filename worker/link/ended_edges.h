// Edges whose connection has ended: an engine's record of them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "worker/link/edge.h"

namespace runahead {

// An edge's connection is made once. Were it made again, an end that had not heard of the first one's death would go on
// over the second one, without the frames that were lost between. Hand-off's connection (generation 0) is made again.
//
// One thread. Keeps a number for each peer process.
class EndedEdges {
 public:
  void Add(const PeerKey& key) {
    if (key.generation == 0) return;
    uint32_t& last = last_[Process(key)];
    last = std::max(last, key.generation);
  }
  // Also of the generations before one that ended.
  bool Contains(const PeerKey& key) const {
    const auto found = last_.find(Process(key));
    return key.generation > 0 && found != last_.end() && key.generation <= found->second;
  }

 private:
  static PeerKey Process(const PeerKey& key) { return {key.incarnation, key.epoch, 0}; }

  absl::flat_hash_map<PeerKey, uint32_t> last_;  // generations, by the key with generation 0
};

}  // namespace runahead
