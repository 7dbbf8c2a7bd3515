#include "scheduler/recompute/smoothed_time.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace runahead {
namespace {

// The share of the newest median in an estimate.
constexpr double kNewest = 0.1;
// A median that is off by more than this factor is no noise: two of three measurements agree in it.
constexpr double kJump = 1.35;

double MedianOf(double a, double b, double c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

}  // namespace

bool IsTime(double value) {
  return std::isfinite(value) && value > 0;
}

void SmoothedTime::Add(double measured) {
  if (!IsTime(measured)) return;
  const std::array<double, 2> before = std::exchange(last_, {last_[1], measured});
  const bool first = std::exchange(guess_, false);
  if (first) value_ = measured;
  if (measured_ < 2) {
    if (!first && measured_ == 1 && began_as_guess_) value_ = (value_ + measured) / 2;
    ++measured_;
    return;
  }
  const double now = MedianOf(before[0], before[1], measured);
  const bool jump = now > kJump * value_ || now * kJump < value_;
  value_ += (jump ? 1 : kNewest) * (now - value_);
}

double SmoothedTime::careful() const {
  return last_[1] > kJump * value_ ? last_[1] : value_;
}

}  // namespace runahead
