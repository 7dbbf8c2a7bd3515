// A set of whole numbers as sorted, disjoint, non-touching intervals: which tokens of a layer have arrived.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace runahead {

// Not thread-safe. Intervals are [begin, end).
class IntervalSet {
 public:
  // Adds [begin, end), begin <= end; what it touches is joined.
  void Add(int64_t begin, int64_t end);
  // Whether all of [begin, end) is in the set; an empty range always is.
  bool Covers(int64_t begin, int64_t end) const;
  int64_t size() const;  // how many numbers are in the set
  // How many from 0 on are in the set without a gap.
  int64_t Prefix() const;
  const std::vector<std::pair<int64_t, int64_t>>& intervals() const { return intervals_; }

 private:
  std::vector<std::pair<int64_t, int64_t>> intervals_;
};

}  // namespace runahead
