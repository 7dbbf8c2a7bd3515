// How a product of m rows is cut into calls of oneDNN.
#pragma once

#include <cstdint>
#include <vector>

namespace runahead {

// One call: rows [row, row + rows) of x times columns [col, col + cols) of out. `call_rows` >= rows is the number of
// rows it is made with; where it is larger, rows are copied into a padded scratch.
struct GemmTask {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t call_rows = 0;
  int64_t col = 0;
  int64_t cols = 0;
  bool operator==(const GemmTask&) const = default;
};

struct CpuGemmShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t element_bytes = 4;
  bool sliceable = false;  // whether columns may be cut, at multiples of kGemmSlice
};
inline constexpr int64_t kGemmSlice = 64;

// Covers m x n exactly once. Most rows go, in blocks that leave room in a core's L2, over all columns (so that out is
// written in place); the rows that cannot be dealt out evenly are cut by columns.
std::vector<GemmTask> PlanGemm(const CpuGemmShape& shape, int threads);

}  // namespace runahead
