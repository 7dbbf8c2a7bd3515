// What a store evicted lately, for a router that believes that it is there.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace runahead {

// Beginnings are named by BeginningHash. Not thread-safe: the owner's lock guards it. Evicted and Kept take constant
// time.
class EvictionNews {
 public:
  // How many evictions are remembered, the newest ones, in some 32 KiB. At 256 tokens each they are a whole store of
  // 256 thousand tokens.
  static constexpr size_t kMost = 1024;

  // A beginning, and so whatever begins with all of it, is there no more.
  void Evicted(uint64_t hash);
  // It is there again: nobody need hear that it was not.
  void Kept(uint64_t hash) { newest_.erase(hash); }
  // A new life of the worker: there has been no news.
  void Clear();

  struct Some {
    std::vector<uint64_t> hashes = {};  // of what is not there now, in the order in which it went
    uint64_t serial = 0;                // of the last news that this takes account of
  };
  // The news behind `serial` (0: from the first on), the oldest first, at most `most`. Evictions that the ring has
  // dropped are not told.
  Some Since(uint64_t serial, size_t most) const;

 private:
  struct One {
    uint64_t serial = 0, hash = 0;
  };
  uint64_t serial_ = 0;                             // of the last one; they rise by 1
  std::deque<One> ring_;                            // by serial
  absl::flat_hash_map<uint64_t, uint64_t> newest_;  // by hash, the serial of its last eviction; in ring_ each
};

}  // namespace runahead
