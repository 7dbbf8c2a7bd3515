#include <cstring>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/row_ops.h"

namespace runahead {

void RowOps::GatherRows(const ConstTensor& x, const std::vector<int32_t>& rows, const MutTensor& out) const {
  const size_t bytes = x.cols * DTypeSize(x.dtype);
  ForRows(out.rows, x.cols, [&](int64_t i) { std::memcpy(RowBytes(out, i), RowBytes(x, rows[i]), bytes); });
}

void RowOps::ExchangeRows(const ConstTensor& x, const std::vector<RowMove>& rows, const MutTensor& out) const {
  const size_t bytes = x.cols * DTypeSize(x.dtype);
  for (const RowMove& row : rows) std::memcpy(RowBytes(out, row.to), RowBytes(x, row.from), bytes);
}

}  // namespace runahead
