// What is said of many values. Pure.
#pragma once

#include <vector>

namespace runahead {

// The value below which `percent` (0 to 100) of `sorted` lie, between two of them by linear interpolation, as numpy's
// default has it. `sorted` is in rising order and has at least one value.
double PercentileOf(const std::vector<double>& sorted, double percent);

struct Distribution {
  double mean = 0;
  double median = 0;
  double std = 0;  // standard deviation of these values, as a population
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
};

// All 0 where there is no value.
Distribution DistributionOf(std::vector<double> values);

}  // namespace runahead
