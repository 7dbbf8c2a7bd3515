// Products of weights as stored with activations in 8 bits: what the code of one instruction set offers.
//
// A row of activations is quantised by blocks of 32: x ~ scale * q, q in [-127, 127]. A block of weights is integers
// u >= 0 with a scale d for each row, and either a minimum m for each row or an offset for all: w = d*u + m, or
// w = d*(u - offset). An element of the product is summed over the blocks b, in order, each step one fused
// multiply-add in f32 of sums of integers that are exact:
//   with m:      y = fma(d * scale_b, sum(u*q), y);  y = fma(m, scale_b * sum(q), y)
//   with offset: y = fma(d * scale_b, sum(u*q) - offset * sum(q), y)
// Of superblocks (kernels/base/superblock.h) d and m above are D * scale and -(Dmin * min), exact in f32, where scales
// are of 32 columns. Where they are of 16, h is 0 and 1 for the halves of a block, and all but the last steps is exact:
//   y = fma(D * scale_b, sum_h(scale_h * (sum_h(u*q) - offset * sum_h(q))), y)
//   with minima: y = fma(-Dmin * scale_b, sum_h(min_h * sum_h(q)), y)
// So it is bitwise the same on all instruction sets, and whatever the rows and columns beside it are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/superblock.h"
#include "kernels/base/weight_type.h"

namespace runahead {

// Rows of weights that lie together.
inline constexpr int kInt8GroupRows = 16;
// Groups that are multiplied with a panel in one call, and their rows.
inline constexpr int kInt8StripGroups = 2;
inline constexpr int kInt8StripRows = kInt8StripGroups * kInt8GroupRows;
inline constexpr int kInt8Block = 32;
// Rows of activations that pass by a block of weights.
inline constexpr int kInt8PanelRows = 64;
// Those of them that a tile takes.
inline constexpr int kInt8TileRows = 16;

// Rows of one quantised type in groups of sixteen, the last filled up with zeros. A group is its blocks of 32 columns,
// one after the other, each in Int8Layout's parts; before every eighth of a superblock's type stands its head. Quartets
// of columns k = 0..7 are columns 4k to 4k + 3.
//   pairs of bits [2][16][4], of 2 and 3 bits: bits 2s and 2s + 1 of byte (p, row, i) are those of element
//     (row, 16p + 4s + i)
//   nibbles [4][16][4], of 4 to 6 bits: byte (p, row, i) holds element (row, 8p + i) in its low half, (row, 8p + 4 + i)
//     in its high half
//   bytes [8][16][4], of 8 bits: byte (k, row, i) is element (row, 4k + i)
//   a plane [16][4] for each bit above: bit k of byte (row, i) belongs to element (row, 4k + i)
//   scales [16] f16, and minima [16] f16 where the type has them; of superblocks scales [h][16] and minima [h][16] in
//     8 bits, h = 0 and 1 where a scale is of 16 columns
//   a head: D [16] f16, and Dmin [16] f16 where the type has minima
struct Int8View {
  WeightType type = WeightType::kQ4_0;
  int64_t rows = 0;
  int64_t blocks = 0;  // of a row
  const std::byte* groups = nullptr;
};

// Where the parts of a block of a type lie.
struct Int8Layout {
  int bits = 0;         // of u as stored
  int low_bits = 0;     // of them what is not in planes: 2, 4 or 8
  bool levels = false;  // u is the number of one of kIq4Levels, and stands for that plus 128
  int offset_bits = 0;  // the offset is 2^offset_bits; 0: the rows have minima
  int halves = 1;       // scales of a row
  size_t planes = 0;    // bytes before the planes
  size_t scales = 0;    // bytes before the scales
  size_t minima = 0;    // bytes before the minima
  size_t bytes = 0;     // of the block
  size_t head = 0;      // bytes of a superblock's head; 0: not of superblocks
};

// `type`: one that HasInt8Form.
constexpr Int8Layout Int8LayoutOf(WeightType type) {
  const bool super = IsSuperblock(type), minima = super ? SuperblockHasMin(type) : BlockOf(type).scales == 2;
  Int8Layout layout;
  layout.bits = BlockOf(type).bits;
  layout.low_bits = layout.bits < 4 ? 2 : layout.bits < 8 ? 4 : 8;
  layout.levels = BlockOf(type).levels;
  layout.offset_bits = minima ? 0 : layout.levels ? 7 : layout.bits - 1;
  layout.halves = super && SuperblockScaleColumns(type) == 16 ? 2 : 1;
  layout.planes = kInt8GroupRows * kInt8Block * layout.low_bits / 8;
  layout.scales = kInt8GroupRows * kInt8Block * layout.bits / 8;
  layout.minima = layout.scales + kInt8GroupRows * (super ? layout.halves : 2);
  layout.bytes = minima ? 2 * layout.minima - layout.scales : layout.minima;
  layout.head = super ? kInt8GroupRows * (minima ? 4 : 2) : 0;
  return layout;
}

// Bytes before block b of a group; with all its blocks, of the group.
constexpr size_t Int8BlockAt(const Int8Layout& layout, int64_t b) {
  constexpr int64_t kOfSuperblock = kSuperblock / kInt8Block;
  return static_cast<size_t>(b) * layout.bytes +
         static_cast<size_t>((b + kOfSuperblock - 1) / kOfSuperblock) * layout.head;
}

// Up to kInt8PanelRows rows of activations, quantised. The memory is its user's.
struct Int8Panel {
  // [blocks][rows][32], 32-byte aligned. Tiles read it by sixteen rows: up to 15 behind the last of any block can be
  // read, whatever they hold.
  int8_t* q = nullptr;
  float* scales = nullptr;             // [blocks][rows]
  int32_t* minus_sums = nullptr;       // [blocks][rows]: -sum(q)
  float* scaled_sums = nullptr;        // [blocks][rows]: scale * sum(q)
  int32_t* minus_half_sums = nullptr;  // [blocks][rows][2]: -sum(q) of either half
  int64_t rows = 0;
};

// Where a strip's products go to.
struct Int8Out {
  float* at = nullptr;  // [rows of the panel][rows of the strip's groups]
  int64_t stride = 0;   // elements from a row to the next
  bool accumulate = false;
};

struct Int8Kernels {
  const char* name;
  // Block b of x, which is row `row` of the panel, goes to [b][row] of the panel's arrays. A block with a NaN or an
  // infinity gets a scale that is not finite; one of magnitudes below 2^-100 becomes zeros.
  void (*quantize_row)(const float* x, int64_t blocks, int64_t row, const Int8Panel& panel);
  // out (+)= the product of `groups` groups, at most kInt8StripGroups, with all rows of the panel.
  void (*strip)(const Int8View& w, int64_t group, int groups, const Int8Panel& x, const Int8Out& out);
};

const Int8Kernels& Avx2Int8Kernels();
const Int8Kernels& AvxVnniInt8Kernels();     // needs AVX-VNNI
const Int8Kernels& Avx512VnniInt8Kernels();  // needs AVX-512 (CpuIsa::kAvx512) and AVX512-VNNI
const Int8Kernels& AmxInt8Kernels();         // needs those, and AMX-INT8 with the permission to use the tiles

// The fastest of what DetectCpuVnni (kernels/cpu/cpu_isa.h) finds; AVX2 must be there.
const Int8Kernels& FastestInt8Kernels();

}  // namespace runahead
