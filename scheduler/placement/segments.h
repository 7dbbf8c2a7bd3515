// All segments of the line of one width, looked at in one pass over the line. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace runahead {

struct WorkerView;

// What stands in the way of a segment, the mildest first.
enum class Obstacle : uint8_t {
  kNone,
  kBusy,      // a member has no place
  kNotReady,  // a member is not ready, or an edge between two of them is broken
  kMemory,    // a member could not hold its prefix even if the segment were ready and idle
};

class Segments {
 public:
  // `line` must outlive it.
  explicit Segments(absl::Span<const WorkerView> line);

  // For each segment by its first worker. held[i], which never falls, is how many tokens the i-th member must hold;
  // 1 <= held.size() <= the line's length. O(the line's length), with the logarithm of the width for workers that
  // cannot hold the last of it.
  std::vector<Obstacle> Obstacles(absl::Span<const int64_t> held) const;

  // Unfinished jobs of all members.
  int Jobs(size_t first, size_t width) const { return Count(jobs_, first, width); }
  // Whether a member has no place.
  bool Busy(size_t first, size_t width) const { return Count(busy_, first, width) > 0; }

  // The length of the longest segment whose members all can hold `held` tokens and have a place, and, where `idle`
  // says so, nothing to do; 0 when there is none.
  size_t LongestFree(int64_t held, bool idle) const;

 private:
  // How many of the workers (edges) from `first` on, `width` of them.
  static int Count(const std::vector<int>& before, size_t first, size_t width) {
    return before[first + width] - before[first];
  }

  const absl::Span<const WorkerView> line_;
  // Of the workers before each index of the line, and at the end of all; broken_: of the edges behind them.
  std::vector<int> not_ready_, broken_, busy_, jobs_;
};

}  // namespace runahead
