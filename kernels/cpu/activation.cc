#include "kernels/cpu/activation.h"

#include <cmath>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/row_ops.h"

namespace runahead {
namespace {

// x/2 * (1 + tanh(z)) = x / (1 + e^(-2z)).
float Gelu(float x) {
  constexpr float kTwoRootTwoByPi = 1.5957691216f;  // 2 * sqrt(2/pi)
  return x / (1.0f + std::exp(-kTwoRootTwoByPi * (x + 0.044715f * x * x * x)));
}

}  // namespace

void ApplyActivation(Activation activation, float* values, int64_t n) {
  if (activation == Activation::kRelu) {
    for (int64_t i = 0; i < n; ++i) values[i] = values[i] < 0.0f ? 0.0f : values[i];
  } else {
    for (int64_t i = 0; i < n; ++i) values[i] = Gelu(values[i]);
  }
}

void FinishLinear(const float* bias, std::optional<Activation> activation, float* row, int64_t n) {
  if (bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) row[i] += bias[i];
  }
  if (activation.has_value()) ApplyActivation(*activation, row, n);
}

void RowOps::Activate(const ConstTensor& x, Activation activation, const MutTensor& out) const {
  ForRows(x.rows, x.cols, [&](int64_t t) {
    ChangeRow(RowBytes(x, t), x.dtype, x.cols, RowBytes(out, t), out.dtype,
              [&](int64_t, int64_t n, float* values) { ApplyActivation(activation, values, n); });
  });
}

void RowOps::FinishLinear(const ConstTensor& sums, const ConstTensor& bias, std::optional<Activation> activation,
                          const MutTensor& out) const {
  const float* const added = bias.ref.buffer == nullptr ? nullptr : bias.row<float>(0);
  ForRows(sums.rows, sums.cols, [&](int64_t t) {
    ChangeRow(RowBytes(sums, t), sums.dtype, sums.cols, RowBytes(out, t), out.dtype,
              [&](int64_t begin, int64_t n, float* values) {
                runahead::FinishLinear(added == nullptr ? nullptr : added + begin, activation, values, n);
              });
  });
}

}  // namespace runahead
