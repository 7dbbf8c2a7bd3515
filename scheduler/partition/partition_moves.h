// Where the search of a partition looks: candidates around a point, and points to start from. Partitions are given by
// their boundaries [0, b_1, .., b_{p-1}, tokens]; strides are in tokens. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace runahead {

using PartBounds = std::vector<int64_t>;

PartBounds BoundsOf(absl::Span<const int64_t> parts);
std::vector<int64_t> PartsOf(absl::Span<const int64_t> bounds);

// Every part has at least one token.
bool IsPartition(absl::Span<const int64_t> bounds);

// Offsets of one boundary go to so many strides on either side: the paper's cost of a level is T * 5^(p-1).
inline constexpr int kReach = 2;

// Candidates are not checked: some may cross and be no partition.
// Two workers: the centre and a stride to either side.
std::vector<PartBounds> SidesAround(const PartBounds& centre, int64_t stride);
// -2..2 strides in each boundary, 5^(p-1) of them.
std::vector<PartBounds> GridAround(const PartBounds& centre, int64_t stride);
// One boundary or two, -2..2 strides each; the others stay where they are, or go with them in proportion. The second
// kind takes from or gives to all parts at once, without which the largest part could only be relieved by making
// another one the largest. The centre too.
std::vector<PartBounds> MovesAround(const PartBounds& centre, int64_t stride);

// Even parts for the last 1, 2, .. width - 1 workers and one token for each before them: where links are slow the best
// partition hardly uses some workers, and no small step leads there from even parts. 2 <= width <= tokens.
std::vector<PartBounds> NarrowStarts(int64_t tokens, int width);
// `count` partitions all over, always the same ones; parts differ up to a hundredfold. 2 <= width <= tokens.
std::vector<PartBounds> ScatteredStarts(int64_t tokens, int width, int count);

// Sum and largest of the distances of the boundaries.
int64_t Distance(const PartBounds& a, const PartBounds& b);
int64_t FarthestMove(const PartBounds& a, const PartBounds& b);

}  // namespace runahead
