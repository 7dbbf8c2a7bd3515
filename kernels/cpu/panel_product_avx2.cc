// Compiled for AVX2 (see CMakeLists.txt): six rows times sixteen columns are twelve sums in registers, with two of
// weights and a broadcast of x beside them.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"

namespace runahead {
namespace {

// Rows of x along [from, from + depth) as [strips][depth][kPanelRows], zeros for rows past the last.
void PackRows(const PanelProduct& product, int64_t from, int depth) {
  float* to = product.scratch;
  for (int64_t row = 0; row < product.rows; row += kPanelRows, to += depth * kPanelRows) {
    for (int r = 0; r < kPanelRows; ++r) {
      const bool there = row + r < product.rows;
      const float* const x = product.x + (row + r) * product.x_stride + from;
      for (int i = 0; i < depth; ++i) to[i * kPanelRows + r] = there ? x[i] : 0.0f;
    }
  }
}

// out[kRows][kPanelCols] = (kAdd ? out : 0) + a strip of packed rows times a panel.
// The loops over sums are unrolled by name, for g++ 12 keeps the sums in memory else.
template <int kRows, bool kAdd>
void MultiplyTile(const float* x, const float* w, int depth, float* out, int64_t stride) {
  __m256 low[kRows], high[kRows];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    low[r] = kAdd ? _mm256_loadu_ps(out + r * stride) : _mm256_setzero_ps();
    high[r] = kAdd ? _mm256_loadu_ps(out + r * stride + 8) : _mm256_setzero_ps();
  }
  for (int i = 0; i < depth; ++i) {
    const __m256 w_low = _mm256_load_ps(w + i * kPanelCols), w_high = _mm256_load_ps(w + i * kPanelCols + 8);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 factor = _mm256_broadcast_ss(x + i * kPanelRows + r);
      low[r] = _mm256_fmadd_ps(factor, w_low, low[r]);
      high[r] = _mm256_fmadd_ps(factor, w_high, high[r]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    _mm256_storeu_ps(out + r * stride, low[r]);
    _mm256_storeu_ps(out + r * stride + 8, high[r]);
  }
}

template <bool kAdd>
void MultiplyRows(const float* x, const float* w, int depth, int rows, float* out, int64_t stride) {
  static_assert(kPanelRows == 6);
  switch (rows) {
    case 1:
      return MultiplyTile<1, kAdd>(x, w, depth, out, stride);
    case 2:
      return MultiplyTile<2, kAdd>(x, w, depth, out, stride);
    case 3:
      return MultiplyTile<3, kAdd>(x, w, depth, out, stride);
    case 4:
      return MultiplyTile<4, kAdd>(x, w, depth, out, stride);
    case 5:
      return MultiplyTile<5, kAdd>(x, w, depth, out, stride);
    default:
      return MultiplyTile<6, kAdd>(x, w, depth, out, stride);
  }
}

// Where less than a panel's columns are asked for.
void MultiplyPart(const float* x, const float* w, int depth, int rows, int cols, bool add, float* out, int64_t stride) {
  alignas(32) float all[kPanelRows * kPanelCols] = {};
  for (int r = 0; add && r < rows; ++r) {
    for (int c = 0; c < cols; ++c) all[r * kPanelCols + c] = out[r * stride + c];
  }
  MultiplyRows<true>(x, w, depth, rows, all, kPanelCols);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) out[r * stride + c] = all[r * kPanelCols + c];
  }
}

}  // namespace

void MultiplyPanelsAvx2(const PanelProduct& product) {
  const int64_t parts = (product.k + kPanelDepth - 1) / kPanelDepth;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t from = product.k * part / parts;
    const int depth = static_cast<int>(product.k * (part + 1) / parts - from);
    const bool add = product.accumulate || part > 0;
    PackRows(product, from, depth);
    const float* w = product.panels + from * kPanelCols;
    for (int64_t col = 0; col < product.cols; col += kPanelCols, w += product.k * kPanelCols) {
      const int cols = static_cast<int>(product.cols - col < kPanelCols ? product.cols - col : kPanelCols);
      const float* x = product.scratch;
      for (int64_t row = 0; row < product.rows; row += kPanelRows, x += depth * kPanelRows) {
        const int rows = static_cast<int>(product.rows - row < kPanelRows ? product.rows - row : kPanelRows);
        float* const out = product.out + row * product.out_stride + col;
        if (cols < kPanelCols) {
          MultiplyPart(x, w, depth, rows, cols, add, out, product.out_stride);
        } else if (add) {
          MultiplyRows<true>(x, w, depth, rows, out, product.out_stride);
        } else {
          MultiplyRows<false>(x, w, depth, rows, out, product.out_stride);
        }
      }
    }
  }
}

}  // namespace runahead
