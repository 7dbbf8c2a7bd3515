#include "kernels/cpu/rows_by_type.h"

namespace runahead {

std::vector<TypedRows> RowsByType(const WeightSource& source) {
  std::vector<TypedRows> all;
  int64_t row = 0;
  for (const WeightRows& run : source.runs) {
    if (all.empty() || all.back().type != run.type) all.push_back({run.type, row, {}});
    const size_t bytes = WeightRowBytes(run.type, source.cols);
    for (int64_t r = 0; r < run.rows; ++r) all.back().rows.push_back(run.data + r * bytes);
    row += run.rows;
  }
  return all;
}

}  // namespace runahead
