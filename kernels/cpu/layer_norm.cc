#include <cmath>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/row_ops.h"

namespace runahead {
namespace {

// Sum of f(x[i]); in independent lanes, so that the compiler can use vectors.
template <typename Function>
double Sum(const float* x, int64_t n, const Function& f) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {}, total = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += f(x[i + lane]);
  }
  for (const double lane : lanes) total += lane;
  for (; i < n; ++i) total += f(x[i]);
  return total;
}

}  // namespace

void RowOps::LayerNorm(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                       const MutTensor& out) const {
  const float* const w = weight.row<float>(0);
  const float* const b = bias.row<float>(0);
  ForRows(x.rows, x.cols, [&](int64_t t) {
    const float* const row = x.row<float>(t);
    const double mean = Sum(row, x.cols, [](double value) { return value; }) / x.cols;
    const double variance = Sum(row, x.cols, [mean](double value) { return (value - mean) * (value - mean); }) / x.cols;
    const float middle = static_cast<float>(mean), factor = static_cast<float>(1.0 / std::sqrt(variance + eps));
    ChangeRow(RowBytes(x, t), x.dtype, x.cols, RowBytes(out, t), out.dtype,
              [&](int64_t begin, int64_t n, float* values) {
                for (int64_t i = 0; i < n; ++i) {
                  values[i] = (values[i] - middle) * factor * w[begin + i] + b[begin + i];
                }
              });
  });
}

}  // namespace runahead
