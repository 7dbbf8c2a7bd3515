#include "scheduler/partition/partition_moves.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <random>
#include <utility>

#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

// Boundaries j <= k moved, and the others where they were between their neighbours: each stretch between moved
// boundaries, or an end, keeps its proportions.
PartBounds Stretch(const PartBounds& bounds, size_t j, int64_t by_j, size_t k, int64_t by_k) {
  PartBounds moved = bounds;
  const size_t knots[] = {0, j, k, bounds.size() - 1};
  const int64_t to[] = {0, bounds[j] + by_j, bounds[k] + by_k, bounds.back()};
  for (int s = 0; s < 3; ++s) {
    const int64_t from_length = bounds[knots[s + 1]] - bounds[knots[s]];
    for (size_t m = knots[s] + 1; m <= knots[s + 1]; ++m) {
      moved[m] = to[s] + (bounds[m] - bounds[knots[s]]) * (to[s + 1] - to[s]) / from_length;
    }
  }
  return moved;
}

}  // namespace

PartBounds BoundsOf(absl::Span<const int64_t> parts) {
  PartBounds bounds = {0};
  for (int64_t part : parts) bounds.push_back(bounds.back() + part);
  return bounds;
}

std::vector<int64_t> PartsOf(absl::Span<const int64_t> bounds) {
  std::vector<int64_t> parts;
  for (size_t i = 1; i < bounds.size(); ++i) parts.push_back(bounds[i] - bounds[i - 1]);
  return parts;
}

bool IsPartition(absl::Span<const int64_t> bounds) {
  return std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<int64_t>()) == bounds.end();
}

std::vector<PartBounds> SidesAround(const PartBounds& centre, int64_t stride) {
  std::vector<PartBounds> sides = {centre, centre, centre};
  sides[1][1] -= stride;
  sides[2][1] += stride;
  return sides;
}

std::vector<PartBounds> GridAround(const PartBounds& centre, int64_t stride) {
  std::vector<PartBounds> all = {centre};
  for (size_t j = 1; j + 1 < centre.size(); ++j) {
    std::vector<PartBounds> next;
    next.reserve(all.size() * (2 * kReach + 1));
    for (const PartBounds& bounds : all) {
      for (int step = -kReach; step <= kReach; ++step) {
        next.push_back(bounds);
        next.back()[j] += step * stride;
      }
    }
    all = std::move(next);
  }
  return all;
}

std::vector<PartBounds> MovesAround(const PartBounds& centre, int64_t stride) {
  std::vector<PartBounds> all = {centre};
  const size_t last = centre.size() - 2;
  for (size_t j = 1; j <= last; ++j) {
    for (size_t k = j; k <= last; ++k) {
      for (int64_t a = -kReach; a <= kReach; ++a) {
        for (int64_t b = -kReach; b <= kReach; ++b) {
          if (a == 0 || b == 0 || (j == k && a != b)) continue;
          PartBounds alone = centre;
          alone[j] += a * stride;
          if (k > j) alone[k] += b * stride;
          all.push_back(std::move(alone));
          all.push_back(Stretch(centre, j, a * stride, k, b * stride));
        }
      }
    }
  }
  return all;
}

std::vector<PartBounds> NarrowStarts(int64_t tokens, int width) {
  std::vector<PartBounds> starts;
  for (int used = 1; used < width; ++used) {
    std::vector<int64_t> parts(width - used, 1);
    const std::vector<double> even(used, 1.0 / used);
    const std::vector<int64_t> rest = RoundParts(tokens - (width - used), even);
    parts.insert(parts.end(), rest.begin(), rest.end());
    starts.push_back(BoundsOf(parts));
  }
  return starts;
}

std::vector<PartBounds> ScatteredStarts(int64_t tokens, int width, int count) {
  std::mt19937_64 random(1);  // its sequence is the same everywhere, a distribution's would not be
  std::vector<PartBounds> starts;
  for (int i = 0; i < count; ++i) {
    std::vector<double> fractions;
    double sum = 0;
    for (int part = 0; part < width; ++part) {
      fractions.push_back(std::pow(100.0, static_cast<double>(random() >> 11) * 0x1p-53));
      sum += fractions.back();
    }
    for (double& fraction : fractions) fraction /= sum;
    starts.push_back(BoundsOf(RoundParts(tokens, fractions)));
  }
  return starts;
}

int64_t Distance(const PartBounds& a, const PartBounds& b) {
  int64_t sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum;
}

int64_t FarthestMove(const PartBounds& a, const PartBounds& b) {
  int64_t most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace runahead
