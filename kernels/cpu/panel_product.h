// Products in f32 of packed weights, what the code of one instruction set offers. A plain struct and a function, as in
// attention_kernels.h: the file that implements it is compiled with flags of its ISA.
#pragma once

#include <cstdint>

namespace runahead {

// Columns of out (rows of weights) that lie together: a panel is [k][kPanelCols], zeros beyond the last.
inline constexpr int kPanelCols = 16;
// Rows of x that are multiplied together, and those that pass by a panel while a part of it is in the first cache.
inline constexpr int kPanelRows = 6;
inline constexpr int kPanelRowBlock = 32 * kPanelRows;
// Most steps along k between two visits to out: so much of a panel, 16 KiB, stays in the first cache.
inline constexpr int kPanelDepth = 256;

// out[rows][cols] (+)= x[rows][k] times the panels.
struct PanelProduct {
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0;  // at most kPanelRowBlock
  int64_t k = 0;
  const float* panels = nullptr;  // 64-byte aligned
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t cols = 0;  // all but the last panel are whole
  bool accumulate = false;
  float* scratch = nullptr;  // [kPanelRowBlock * kPanelDepth], 64-byte aligned
};

// An element is summed along k in order, from zero or from what is accumulated to, each step fused: it is bitwise the
// same whatever the rows and columns beside it are. Needs AVX2 and FMA.
void MultiplyPanelsAvx2(const PanelProduct& product);

}  // namespace runahead
