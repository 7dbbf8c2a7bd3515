#include "client/measure/median.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace runahead {
namespace {

// Of normally distributed values: the standard deviation over the median deviation, and the standard error of a median
// over that of a mean.
constexpr double kDeviations = 1.4826;
constexpr double kMedianOverMean = 1.2533;

}  // namespace

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double MedianDeviationOf(const std::vector<double>& values) {
  const double median = MedianOf(values);
  std::vector<double> deviations;
  for (const double value : values) deviations.push_back(std::abs(value - median));
  return MedianOf(std::move(deviations));
}

double MedianErrorOf(const std::vector<double>& values) {
  const double deviation = kDeviations * MedianDeviationOf(values);
  return kMedianOverMean * deviation / std::sqrt(static_cast<double>(values.size()));
}

}  // namespace runahead
