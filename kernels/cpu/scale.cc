#include "kernels/cpu/row_ops.h"

namespace runahead {

void RowOps::Scale(const ConstTensor& x, float factor, bool accumulate, const MutTensor& out) const {
  ForRows(x.rows, x.cols, [&](int64_t t) {
    const float* const from = x.row<float>(t);
    float* const to = out.row<float>(t);
    if (accumulate) {
      for (int64_t c = 0; c < x.cols; ++c) to[c] += factor * from[c];
    } else {
      for (int64_t c = 0; c < x.cols; ++c) to[c] = factor * from[c];
    }
  });
}

}  // namespace runahead
