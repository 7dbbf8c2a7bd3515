#include "client/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace runahead {

double PercentileOf(const std::vector<double>& sorted, double percent) {
  const double place = percent / 100 * static_cast<double>(sorted.size() - 1);
  const size_t below = std::min(static_cast<size_t>(place), sorted.size() - 1);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - static_cast<double>(below));
}

Distribution DistributionOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double count = static_cast<double>(values.size());
  Distribution found;
  found.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - found.mean) * (value - found.mean);
  found.std = std::sqrt(squares / count);
  found.median = PercentileOf(values, 50);
  found.p90 = PercentileOf(values, 90);
  found.p95 = PercentileOf(values, 95);
  found.p99 = PercentileOf(values, 99);
  return found;
}

}  // namespace runahead
