// The product of one group of rows with a panel, for an instruction set. Include only from files that are compiled for
// it: Isa is its integer arithmetic, a type of that file alone.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/int8/product.h"

namespace runahead {

// The eight quartets of columns of a block, as they are multiplied: four u of each of Isa::kRows rows in a register.
template <class Isa>
struct Int8Quartets {
  typename Isa::Int u[8];
};

// What the nibbles of `block` are for the rows from `first` on.
template <class Isa, WeightType type>
static inline __attribute__((always_inline)) Int8Quartets<Isa> UnpackNibbles(const uint8_t* block, int first) {
  constexpr Int8Layout kLayout = Int8LayoutOf(type);
  const typename Isa::Int fifteen = Isa::Set8(15);
  Int8Quartets<Isa> w;
#pragma GCC unroll 4
  for (int p = 0; p < 4; ++p) {
    const typename Isa::Int both = Isa::Load(block + 64 * p + 4 * first);
    w.u[2 * p] = Isa::And(both, fifteen);
    w.u[2 * p + 1] = Isa::And(Isa::template ShiftRight16<4>(both), fifteen);
  }
  if constexpr (kLayout.bits == 5) {
    const typename Isa::Int bits = Isa::Load(block + kLayout.high + 4 * first), sixteen = Isa::Set8(16);
    w.u[0] = Isa::Or(w.u[0], Isa::And(Isa::template ShiftLeft16<4>(bits), sixteen));
    w.u[1] = Isa::Or(w.u[1], Isa::And(Isa::template ShiftLeft16<3>(bits), sixteen));
    w.u[2] = Isa::Or(w.u[2], Isa::And(Isa::template ShiftLeft16<2>(bits), sixteen));
    w.u[3] = Isa::Or(w.u[3], Isa::And(Isa::template ShiftLeft16<1>(bits), sixteen));
    w.u[4] = Isa::Or(w.u[4], Isa::And(bits, sixteen));
    w.u[5] = Isa::Or(w.u[5], Isa::And(Isa::template ShiftRight16<1>(bits), sixteen));
    w.u[6] = Isa::Or(w.u[6], Isa::And(Isa::template ShiftRight16<2>(bits), sixteen));
    w.u[7] = Isa::Or(w.u[7], Isa::And(Isa::template ShiftRight16<3>(bits), sixteen));
  }
  return w;
}

template <class Isa, WeightType type>
class Int8GroupProduct {
 public:
  static void Run(const Int8View& w, int64_t group, const Int8Panel& x, float* y) {
    const uint8_t* block = reinterpret_cast<const uint8_t*>(w.groups) + group * w.blocks * kLayout.bytes;
    std::memset(y, 0, x.rows * kInt8GroupRows * sizeof(float));
    for (int64_t b = 0; b < w.blocks; ++b, block += kLayout.bytes) {
      for (int first = 0; first < kInt8GroupRows; first += Isa::kRows) AddBlock(block, first, b, x, y);
    }
  }

 private:
  using Int = typename Isa::Int;
  using Float = typename Isa::Float;
  static constexpr Int8Layout kLayout = Int8LayoutOf(type);

  // Block b of the rows [first, first + Isa::kRows) of the group.
  static void AddBlock(const uint8_t* block, int first, int64_t b, const Int8Panel& x, float* y) {
    const int8_t* q = x.q + b * x.rows * kInt8Block;
    const Terms terms(block, first, b, x);
    if constexpr (kLayout.bits < 8) {
      const Int8Quartets<Isa> w = UnpackNibbles<Isa, type>(block, first);
      for (int64_t r = 0; r < x.rows; ++r) {
        terms.Add(r, Isa::template Sum<kLayout.bits>(w, q + r * kInt8Block), y + r * kInt8GroupRows + first);
      }
    } else if constexpr (Isa::kTakesBytes) {
      Int8Quartets<Isa> w;
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) w.u[k] = Isa::Load(block + 64 * k + 4 * first);
      for (int64_t r = 0; r < x.rows; ++r) {
        terms.Add(r, Isa::template Sum<8>(w, q + r * kInt8Block), y + r * kInt8GroupRows + first);
      }
    } else {
      AddBytesByHalves(block, first, q, terms, x.rows, y);
    }
  }

  // u = low + 16 * high, where products of whole bytes would be too large for the sums of pairs.
  template <typename Terms>
  static void AddBytesByHalves(const uint8_t* block, int first, const int8_t* q, const Terms& terms, int64_t rows,
                               float* y) {
    alignas(64) int32_t low[kInt8PanelRows * Isa::kRows];
    const Int fifteen = Isa::Set8(15);
    Int8Quartets<Isa> w;
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) w.u[k] = Isa::And(Isa::Load(block + 64 * k + 4 * first), fifteen);
    for (int64_t r = 0; r < rows; ++r) {
      Isa::Store(low + r * Isa::kRows, Isa::template Sum<4>(w, q + r * kInt8Block));
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      w.u[k] = Isa::And(Isa::template ShiftRight16<4>(Isa::Load(block + 64 * k + 4 * first)), fifteen);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const Int high = Isa::template ShiftLeft32<4>(Isa::template Sum<4>(w, q + r * kInt8Block));
      terms.Add(r, Isa::Add32(Isa::Load(low + r * Isa::kRows), high), y + r * kInt8GroupRows + first);
    }
  }

  // What becomes of the sums of a block.
  struct Terms {
    Terms(const uint8_t* block, int first, int64_t b, const Int8Panel& x)
        : scales(x.scales + b * x.rows), sums(x.sums + b * x.rows), scaled_sums(x.scaled_sums + b * x.rows) {
      const uint16_t* f16 = reinterpret_cast<const uint16_t*>(block + kLayout.scales) + first;
      d = Isa::LoadF16(f16);
      if constexpr (kLayout.offset_bits == 0) m = Isa::LoadF16(f16 + kInt8GroupRows);
    }

    // y (+)= that of row r of the panel, `sum` being sum(u*q).
    inline __attribute__((always_inline)) void Add(int64_t r, Int sum, float* y) const {
      Float out = Isa::LoadFloat(y);
      if constexpr (kLayout.offset_bits != 0) {
        sum = Isa::Sub32(sum, Isa::template ShiftLeft32<kLayout.offset_bits>(Isa::Set32(sums[r])));
      }
      out = Isa::Fma(Isa::Mul(d, Isa::SetFloat(scales[r])), Isa::ToFloat(sum), out);
      if constexpr (kLayout.offset_bits == 0) out = Isa::Fma(m, Isa::SetFloat(scaled_sums[r]), out);
      Isa::StoreFloat(y, out);
    }

    const float* scales;
    const int32_t* sums;
    const float* scaled_sums;
    Float d;
    Float m;
  };
};

// By the type of the weights.
template <class Isa>
static void Int8Group(const Int8View& w, int64_t group, const Int8Panel& x, float* y) {
  switch (w.type) {
    case WeightType::kQ4_0:
      return Int8GroupProduct<Isa, WeightType::kQ4_0>::Run(w, group, x, y);
    case WeightType::kQ4_1:
      return Int8GroupProduct<Isa, WeightType::kQ4_1>::Run(w, group, x, y);
    case WeightType::kQ5_0:
      return Int8GroupProduct<Isa, WeightType::kQ5_0>::Run(w, group, x, y);
    case WeightType::kQ5_1:
      return Int8GroupProduct<Isa, WeightType::kQ5_1>::Run(w, group, x, y);
    case WeightType::kQ8_0:
      return Int8GroupProduct<Isa, WeightType::kQ8_0>::Run(w, group, x, y);
    default:
      __builtin_trap();  // Int8Weights takes types that HasInt8Layout only
  }
}

}  // namespace runahead
