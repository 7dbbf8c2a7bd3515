#include "kernels/cpu/activation.h"

#include "kernels/cpu/elements.h"
#include "kernels/cpu/row_ops.h"

namespace runahead {

void FinishLinear(const CpuKernels& kernels, const float* bias, std::optional<Activation> activation, float* row,
                  int64_t n) {
  if (bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) row[i] += bias[i];
  }
  if (activation.has_value()) kernels.activate_row(*activation, row, n);
}

void RowOps::Activate(const ConstTensor& x, Activation activation, const MutTensor& out) const {
  ForRows(x.rows, x.cols, [&](int64_t t) {
    ChangeRow(RowBytes(x, t), x.dtype, x.cols, RowBytes(out, t), out.dtype,
              [&](int64_t, int64_t n, float* values) { kernels.activate_row(activation, values, n); });
  });
}

}  // namespace runahead
