// Sums of products of a block by tiles. Include only from files that are compiled for AVX-512, and for the tiles where
// `Tiles` is the machine's unit.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/int8/elements_template.h"
#include "kernels/cpu/int8/product.h"

namespace runahead {

// Shapes of tiles 0 and 1, sums of sixteen rows of q and as many of a group; 2 and 3, q of a block or of either half;
// 4 to 7, u of those columns, of two groups.
struct Int8TileConfig : TileConfig {
  constexpr explicit Int8TileConfig(int halves) {
    for (int tile = 2; tile < 4; ++tile) row_bytes[tile] = kInt8Block / halves;
    for (int tile = 4; tile < 8; ++tile) rows[tile] = kInt8Block / 4 / halves;
  }
};

// What group_template.h takes as Isa::Sums: all sums of a block are found at once and lie in memory.
template <class Isa, class Tiles, WeightType type, int kGroups>
class Int8TileSums {
 public:
  using Int = typename Isa::Int;

  // As that of Int8RegisterSums (first is 0), and q is read up to the next multiple of sixteen rows. The tiles are
  // configured as Int8TileConfig(kHalves) says.
  Int8TileSums(const uint8_t* const (&blocks)[kGroups], int first, const int8_t* q, int64_t rows) {
    for (int g = 0; g < kGroups; ++g) Unpack(blocks[g], first, u_ + g * kUBytes);
    LoadWeights(Pieces());
    for (int64_t r = 0; r < rows; r += kInt8TileRows) {
      Tiles::template Load<2>(q + r * kInt8Block, kInt8Block);
      if constexpr (kHalves == 2) Tiles::template Load<3>(q + r * kInt8Block + kInt8Block / 2, kInt8Block);
      Multiply(r, Pieces());
    }
  }
  inline __attribute__((always_inline)) Int Sum(int g, int64_t r, Int start) const {
    static_assert(kHalves == 1);
    return Isa::Add32(Isa::Load(sums_[g][r]), start);
  }
  inline __attribute__((always_inline)) Int HalfSum(int g, int h, int64_t r, Int start) const {
    static_assert(kHalves == 2);
    return Isa::Add32(Isa::Load(sums_[kHalves * g + h][r]), start);
  }

 private:
  static constexpr int kHalves = Int8LayoutOf(type).halves;
  static constexpr int kUBytes = kInt8Block * kInt8GroupRows;  // of a block
  // Halves of blocks, or whole ones: piece i is of group i / kHalves.
  static constexpr int kPieces = kGroups * kHalves;
  using Pieces = std::make_integer_sequence<int, kPieces>;
  static_assert(Isa::kRows == kInt8GroupRows && kPieces <= 4);

  // u of a block as bytes [8][16][4]; its second half is that of the columns, too.
  static inline __attribute__((always_inline)) void Unpack(const uint8_t* block, int first, uint8_t* u) {
    const Int8Quartets<Isa> w = Int8Elements<Isa, type>::Whole(block, first);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) Isa::Store(u + k * 4 * kInt8GroupRows, w.u[k]);
  }
  template <int... i>
  inline __attribute__((always_inline)) void LoadWeights(std::integer_sequence<int, i...>) {
    (Tiles::template Load<4 + i>(u_ + i * (kUBytes / kHalves), 4 * kInt8GroupRows), ...);
  }
  // Rows [r, r + 16) of q.
  template <int... i>
  inline __attribute__((always_inline)) void Multiply(int64_t r, std::integer_sequence<int, i...>) {
    (MultiplyPiece<i>(r), ...);
  }
  template <int i>
  inline __attribute__((always_inline)) void MultiplyPiece(int64_t r) {
    Tiles::template Zero<i % 2>();
    Tiles::template DotInt8<i % 2, 2 + i % kHalves, 4 + i>();
    Tiles::template Store<i % 2>(sums_[i][r], sizeof(sums_[i][r]));
  }

  alignas(64) uint8_t u_[kGroups * kUBytes];
  alignas(64) int32_t sums_[kPieces][kInt8PanelRows][kInt8GroupRows];
};

}  // namespace runahead
