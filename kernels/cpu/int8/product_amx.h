// Products in 8 bits on AMX tiles. `Tiles` is the machine's tile unit; tests have one in memory. Include only from
// files that are compiled for AVX-512, each with a `Tiles` of its own.
//
// Tiles multiply what is integer, sixteen rows of activations with a block of two groups at a time; the sums go through
// memory to the vectors, which do the steps in f32 of all instruction sets.
#pragma once

#include <cstdint>

#include "kernels/cpu/int8/group_template.h"
#include "kernels/cpu/int8/ints512.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/int8/quantize_row.h"
#include "kernels/cpu/int8/tile_sums.h"

namespace runahead {

template <class Tiles>
struct Int8Amx : Ints512<Int8Amx<Tiles>> {
  template <WeightType type, int kGroups>
  using Sums = Int8TileSums<Int8Amx, Tiles, type, kGroups>;

  // With fewer rows than this most of a tile would be empty, and vectors multiply. Not measured: no machine with AMX
  // was at hand.
  static constexpr int64_t kLeastRows = 8;

  static void Strip(const Int8View& w, int64_t group, int groups, const Int8Panel& x, const Int8Out& out) {
    static constexpr Int8TileConfig kWhole(1), kHalves(2);
    if (x.rows < kLeastRows) return Avx512VnniInt8Kernels().strip(w, group, groups, x, out);
    Tiles::Configure(Int8LayoutOf(w.type).halves == 2 ? kHalves : kWhole);
    Int8Strip<Int8Amx>(w, group, groups, x, out);
    Tiles::Release();
  }

  static constexpr Int8Kernels kKernels = {"amx", Int8QuantizeRow, Strip};
};

}  // namespace runahead
