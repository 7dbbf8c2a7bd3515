// Medians of measurements, and how far they may be off: outliers do not count. Of at least one value each.
#pragma once

#include <vector>

namespace runahead {

double MedianOf(std::vector<double> values);
// The median of the distances from the median.
double MedianDeviationOf(const std::vector<double>& values);
// The standard error of the median, were the values normally distributed with this median deviation.
double MedianErrorOf(const std::vector<double>& values);

}  // namespace runahead
