// How long KV of other parts was on the wire to one job, and how much of that compute hid.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "worker/link/wire_time.h"

namespace runahead {

// Of one job on one worker. Not thread-safe: of the stage's thread. All times are of one clock.
class TransferTimes {
 public:
  // A frame has come. Frames that are on the wire side by side count once.
  void AddFrame(const WireTime& wire) { frames_.push_back({wire.first, wire.last}); }
  // The worker stood idle for want of KV of other parts; spans may come in any order and overlap.
  void AddIdle(absl::Time begin, absl::Time end) { idle_.push_back({begin, end}); }

  // While at least one frame was on the wire.
  absl::Duration Transfer() const;
  // What of that fell into none of the idle spans: the job's pass, or what ran between its layers, computed.
  absl::Duration Hidden() const;

 private:
  struct Span {
    absl::Time begin, end;
  };
  // Sorted, without overlaps.
  static std::vector<Span> Union(std::vector<Span> spans);

  std::vector<Span> frames_, idle_;
};

}  // namespace runahead
