#include "client/measure/solve_rising.h"

#include <cmath>

namespace runahead {

double SolveRising(double least, double most, double target, const std::function<double(double)>& rises) {
  double low = std::log(least), high = std::log(most);
  while (high - low > 1e-7) {
    const double middle = (low + high) / 2;
    (rises(std::exp(middle)) < target ? low : high) = middle;
  }
  return std::exp((low + high) / 2);
}

}  // namespace runahead
