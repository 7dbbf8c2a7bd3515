// What a worker counts about one neighbour in the chain. Names and labels: docs/metrics.md.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "server/base/metrics.h"

namespace runahead {

// Neighbours that have series of their own. A worker has two at a time, and others in their place while the line
// changes: only a pool whose workers come under ever new names has more, which count as "other".
inline constexpr size_t kMeteredPeers = 64;

// Thread-safe; lives no longer than the registry. Made when the line forms, which is when a peer becomes known; making
// it again for the same peer goes on with the same series.
class LinkMetrics {
 public:
  LinkMetrics(MetricRegistry& registry, const std::string& peer);

  // One frame: from its bytes being there until they may be reused; and from its first byte on the wire to its last.
  void ObserveSend(int64_t bytes, absl::Duration took);
  void ObserveReceive(int64_t bytes, absl::Duration took);

 private:
  struct Direction {
    Histogram& seconds;
    Counter& bytes;
  };
  static Direction Add(MetricRegistry& registry, const std::string& peer, const std::string& direction);

  Direction send_;
  Direction receive_;
};

}  // namespace runahead
