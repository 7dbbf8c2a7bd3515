// Products of weights as stored with activations in 8 bits: what the code of one instruction set offers.
//
// A row of activations is quantised by blocks of 32: x ~ scale * q, q in [-127, 127]. A block of weights is integers
// u >= 0 with a scale d for each row, and either a minimum m for each row or an offset for all: w = d*u + m, or
// w = d*(u - offset). An element of the product is summed over the blocks b, in order, each step one fused
// multiply-add in f32 of sums of integers that are exact:
//   with m:      y = fma(d * scale_b, sum(u*q), y);  y = fma(m, scale_b * sum(q), y)
//   with offset: y = fma(d * scale_b, sum(u*q) - offset * sum(q), y)
// So it is bitwise the same on all instruction sets, and whatever the rows and columns beside it are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/weight_type.h"

namespace runahead {

// Rows of weights that are multiplied together.
inline constexpr int kInt8GroupRows = 16;
inline constexpr int kInt8Block = 32;
// Rows of activations that pass by a block of weights.
inline constexpr int kInt8PanelRows = 64;

// Rows of one quantised type in groups of sixteen, the last filled up with zeros. A group is its blocks of 32 columns,
// one after the other, each in Int8Layout's parts. Quartets of columns k = 0..7 are columns 4k to 4k + 3.
//   nibbles [4][16][4]: byte (p, row, i) holds element (row, 8p + i) in its low half, (row, 8p + 4 + i) in its high
//   half fifth bits [16][4]: bit k of byte (row, i) belongs to element (row, 4k + i) bytes [8][16][4]: byte (k, row, i)
//   is element (row, 4k + i) scales [16] f16, and minima [16] f16 where the type has them
struct Int8View {
  WeightType type = WeightType::kQ4_0;
  int64_t rows = 0;
  int64_t blocks = 0;  // of a row
  const std::byte* groups = nullptr;
};

// Where the parts of a block of a type lie.
struct Int8Layout {
  int bits = 0;         // of u: 4, 5 or 8
  int offset_bits = 0;  // the offset is 2^offset_bits; 0: the rows have minima
  size_t high = 0;      // bytes before the fifth bits
  size_t scales = 0;    // bytes before the scales
  size_t bytes = 0;     // of the block
};

constexpr bool HasInt8Layout(WeightType type) {
  return !IsPlain(type);
}

constexpr Int8Layout Int8LayoutOf(WeightType type) {
  Int8Layout layout;
  layout.bits = type == WeightType::kQ8_0 ? 8 : type == WeightType::kQ4_0 || type == WeightType::kQ4_1 ? 4 : 5;
  layout.offset_bits = BlockOf(type).scales == 2 ? 0 : layout.bits - 1;
  layout.high = kInt8GroupRows * kInt8Block / 2;
  layout.scales = kInt8GroupRows * kInt8Block * layout.bits / 8;
  layout.bytes = layout.scales + kInt8GroupRows * BlockOf(type).scale_bytes();
  return layout;
}

// Up to kInt8PanelRows rows of activations, quantised. The memory is its user's.
struct Int8Panel {
  int8_t* q = nullptr;           // [blocks][rows][32], 32-byte aligned
  float* scales = nullptr;       // [blocks][rows]
  int32_t* sums = nullptr;       // [blocks][rows]: sum(q)
  float* scaled_sums = nullptr;  // [blocks][rows]: scale * sum(q)
  int64_t rows = 0;
};

struct Int8Kernels {
  const char* name;
  // Block b of x, which is row `row` of the panel, goes to [b][row] of the panel's arrays. A block with a NaN or an
  // infinity gets a scale that is not finite; one of magnitudes below 2^-100 becomes zeros.
  void (*quantize_row)(const float* x, int64_t blocks, int64_t row, const Int8Panel& panel);
  // y[row][16] = the product of one group with all rows of the panel.
  void (*group)(const Int8View& w, int64_t group, const Int8Panel& x, float* y);
};

const Int8Kernels& Avx2Int8Kernels();
const Int8Kernels& AvxVnniInt8Kernels();     // needs AVX-VNNI
const Int8Kernels& Avx512VnniInt8Kernels();  // needs AVX-512 (CpuIsa::kAvx512) and AVX512-VNNI

// The fastest of what DetectCpuVnni (kernels/cpu/cpu_isa.h) finds; AVX2 must be there.
const Int8Kernels& FastestInt8Kernels();

}  // namespace runahead
