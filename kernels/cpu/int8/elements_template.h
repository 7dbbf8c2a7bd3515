// The elements of a block of weights in registers, for an instruction set. Include only from files that are compiled
// for it: Isa is its integer arithmetic, a type of that file alone.
#pragma once

#include <cstdint>

#include "kernels/cpu/int8/product.h"

namespace runahead {

// The eight quartets of columns of a block, as they are multiplied: four u of each of Isa::kRows rows in a register.
template <class Isa>
struct Int8Quartets {
  typename Isa::Int u[8];
};

// Sixteen bytes that the numbers of kIq4Levels are looked up in: level + 128, or its low or high half.
struct Int8LevelBytes {
  uint8_t bytes[16];
};
constexpr Int8LevelBytes Int8Levels(int shift, int mask) {
  Int8LevelBytes table = {};
  for (int i = 0; i < 16; ++i) table.bytes[i] = static_cast<uint8_t>((kIq4Levels[i] + 128) >> shift & mask);
  return table;
}

template <class Isa, WeightType type>
struct Int8Elements {
  using Int = typename Isa::Int;
  using Quartets = Int8Quartets<Isa>;
  static constexpr Int8Layout kLayout = Int8LayoutOf(type);
  // Whether u takes all of a byte.
  static constexpr bool kBytes = kLayout.bits == 8 || kLayout.levels;

  // Those of rows [first, first + Isa::kRows): u, and its halves where it is a byte.
  static inline __attribute__((always_inline)) Quartets Whole(const uint8_t* block, int first) {
    if constexpr (kLayout.levels) return LookUp(Stored(block, first), Int8Levels(0, 255));
    return Stored(block, first);
  }
  static inline __attribute__((always_inline)) Quartets Low(const uint8_t* block, int first) {
    if constexpr (kLayout.levels) return LookUp(Stored(block, first), Int8Levels(0, 15));
    Quartets w = Stored(block, first);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) w.u[k] = Isa::And(w.u[k], Isa::Set8(15));
    return w;
  }
  static inline __attribute__((always_inline)) Quartets High(const uint8_t* block, int first) {
    if constexpr (kLayout.levels) return LookUp(Stored(block, first), Int8Levels(4, 15));
    Quartets w = Stored(block, first);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) w.u[k] = Isa::And(Isa::template ShiftRight16<4>(w.u[k]), Isa::Set8(15));
    return w;
  }

 private:
  static inline __attribute__((always_inline)) Quartets LookUp(Quartets w, const Int8LevelBytes& table) {
    const Int levels = Isa::Table(table.bytes);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) w.u[k] = Isa::LookUp(levels, w.u[k]);
    return w;
  }

  // kBits bits of each byte, from the bit kShift on.
  template <int kBits, int kShift>
  static inline __attribute__((always_inline)) Int Part(Int bytes) {
    if constexpr (kShift == 0) return Isa::And(bytes, Isa::Set8((1 << kBits) - 1));
    return Isa::And(Isa::template ShiftRight16<kShift>(bytes), Isa::Set8((1 << kBits) - 1));
  }
  // Bit kQuartet of each byte, at the place of bit kBit.
  template <int kQuartet, int kBit>
  static inline __attribute__((always_inline)) Int PlaneBit(Int bytes) {
    const Int at = Isa::Set8(static_cast<int8_t>(1 << kBit));
    if constexpr (kQuartet < kBit) return Isa::And(Isa::template ShiftLeft16<kBit - kQuartet>(bytes), at);
    if constexpr (kQuartet > kBit) return Isa::And(Isa::template ShiftRight16<kQuartet - kBit>(bytes), at);
    return Isa::And(bytes, at);
  }
  template <int kBit>
  static inline __attribute__((always_inline)) void AddPlane(const uint8_t* block, int first, Quartets& w) {
    const Int bytes = Isa::Load(block + kLayout.planes + 64 * (kBit - kLayout.low_bits) + 4 * first);
    w.u[0] = Isa::Or(w.u[0], PlaneBit<0, kBit>(bytes));
    w.u[1] = Isa::Or(w.u[1], PlaneBit<1, kBit>(bytes));
    w.u[2] = Isa::Or(w.u[2], PlaneBit<2, kBit>(bytes));
    w.u[3] = Isa::Or(w.u[3], PlaneBit<3, kBit>(bytes));
    w.u[4] = Isa::Or(w.u[4], PlaneBit<4, kBit>(bytes));
    w.u[5] = Isa::Or(w.u[5], PlaneBit<5, kBit>(bytes));
    w.u[6] = Isa::Or(w.u[6], PlaneBit<6, kBit>(bytes));
    w.u[7] = Isa::Or(w.u[7], PlaneBit<7, kBit>(bytes));
  }

  static inline __attribute__((always_inline)) Quartets Stored(const uint8_t* block, int first) {
    const uint8_t* const from = block + 4 * first;
    Quartets w;
    if constexpr (kLayout.low_bits == 8) {
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) w.u[k] = Isa::Load(from + 64 * k);
    } else if constexpr (kLayout.low_bits == 4) {
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) {
        const Int both = Isa::Load(from + 64 * p);
        w.u[2 * p] = Part<4, 0>(both);
        w.u[2 * p + 1] = Part<4, 4>(both);
      }
    } else {
#pragma GCC unroll 2
      for (int p = 0; p < 2; ++p) {
        const Int four = Isa::Load(from + 64 * p);
        w.u[4 * p] = Part<2, 0>(four);
        w.u[4 * p + 1] = Part<2, 2>(four);
        w.u[4 * p + 2] = Part<2, 4>(four);
        w.u[4 * p + 3] = Part<2, 6>(four);
      }
    }
    if constexpr (kLayout.low_bits < kLayout.bits) AddPlane<kLayout.low_bits>(block, first, w);
    if constexpr (kLayout.low_bits + 1 < kLayout.bits) AddPlane<kLayout.low_bits + 1>(block, first, w);
    return w;
  }
};

}  // namespace runahead
