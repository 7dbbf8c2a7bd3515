// Where a rising function reaches a value.
#pragma once

#include <functional>

namespace runahead {

// The x of [least, most] at which `rises` reaches `target`, or the end that comes nearest. To six digits; least is above
// 0. Any thread.
double SolveRising(double least, double most, double target, const std::function<double(double)>& rises);

}  // namespace runahead
