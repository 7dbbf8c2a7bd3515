// What a lane takes, by measurements that come one by one. Pure.
#pragma once

#include <array>

namespace runahead {

// A finite number above 0.
bool IsTime(double value);

// An estimate by the last measurements: an EWMA of the medians of three, so that one outlier changes nothing, and a
// jump to the median itself once that is off by a third. Where the value it begins with is a mere guess, the first
// measurement takes its place, and the mean of two that of the first.
class SmoothedTime {
 public:
  explicit SmoothedTime(double value, bool guess = false) : value_(value), guess_(guess), began_as_guess_(guess) {}
  // Ignores what is not a finite number above 0 (IsTime).
  void Add(double measured);
  double value() const { return value_; }
  // The last measurement where that is longer by a third, though it may be an outlier; else the value.
  double careful() const;
  bool guess() const { return guess_; }

 private:
  double value_;
  bool guess_;
  bool began_as_guess_;
  std::array<double, 2> last_ = {};
  int measured_ = 0;
};

}  // namespace runahead
