// The order in which the host lane takes pieces of a step's sequences, and what it leaves for recomputation. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/recompute/lane_shapes.h"

namespace runahead {

// What is left to choose when the host lane has its pieces: l of all sequences together, in tiles above the smallest.
struct SplitRoom {
  int64_t host_rows = 0;
  int64_t cheap_tiles = 0;  // the first so many have their X on the device
  int64_t tiles = 0;        // 0 <= cheap_tiles <= tiles
};

// First come pieces for which X is not stored, then those whose X would have to travel, then those whose X is on the
// device: so the host lane takes as little from recomputation as it can. Within these classes sequence by sequence,
// from the window backwards, so that q of few sequences has to travel.
class HostPath {
 public:
  // `shapes` are checked, and must outlive the path. Without `host_lane` it has no pieces.
  HostPath(absl::Span<const LaneShape> shapes, int64_t tile, bool host_lane);

  int64_t pieces() const { return pieces_; }
  // When the host lane has the first `pieces` of them. 0 <= pieces <= pieces(); some tens of nanoseconds.
  SplitRoom At(int64_t pieces) const;
  // Sets host_end and streamed_end of each sequence. cuts: one a shape.
  void Cut(int64_t pieces, absl::Span<LaneCuts> cuts) const;

 private:
  // Pieces of one sequence and one class, which follow each other.
  struct Run {
    size_t sequence = 0;
    int64_t pieces_before = 0;  // of all runs before
    int64_t end = 0;            // streamed_end of the sequence when the run begins
    SplitRoom room;             // when the run begins
  };

  void AddRuns(absl::Span<const SplitBounds> whole, int which);
  // `room`, but for one sequence whose streamed_end goes from `from` to `to`.
  SplitRoom Moved(SplitRoom room, const LaneShape& shape, int64_t from, int64_t to) const;

  const absl::Span<const LaneShape> shapes_;
  const int64_t tile_;
  std::vector<Run> runs_;
  std::vector<int64_t> ends_;  // streamed_end of each sequence after the runs so far
  int64_t pieces_ = 0;
  SplitRoom room_;  // after the runs so far
};

}  // namespace runahead
