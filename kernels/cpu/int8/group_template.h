// The product of one group of rows with a panel, for an instruction set. Include only from files that are compiled for
// it: Isa is its integer arithmetic, a type of that file alone.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/int8/elements_template.h"
#include "kernels/cpu/int8/product.h"

namespace runahead {

// Types whose rows have one scale for a block of 32 columns.
template <class Isa, WeightType type>
class Int8BlockProduct {
 public:
  // Block b of the rows [first, first + Isa::kRows) of the group is added to y; head: of its superblock.
  static inline void Add(const uint8_t* head, const uint8_t* block, int first, int64_t b, const Int8Panel& x,
                         float* y) {
    const int8_t* q = x.q + b * x.rows * kInt8Block;
    const Terms terms(head, block, first, b, x);
    if constexpr (!Elements::kBytes || Isa::kTakesBytes) {
      const Int8Quartets<Isa> w = Elements::Whole(block, first);
      constexpr int kBits = Elements::kBytes ? 8 : kLayout.bits;
      for (int64_t r = 0; r < x.rows; ++r) {
        terms.Add(r, Isa::template Sum<kBits>(w, q + r * kInt8Block), y + r * kInt8GroupRows + first);
      }
    } else {
      AddByHalves(block, first, q, terms, x.rows, y);
    }
  }

 private:
  using Int = typename Isa::Int;
  using Float = typename Isa::Float;
  using Elements = Int8Elements<Isa, type>;
  static constexpr Int8Layout kLayout = Int8LayoutOf(type);

  // What becomes of the sums of a block.
  struct Terms {
    Terms(const uint8_t* head, const uint8_t* block, int first, int64_t b, const Int8Panel& x)
        : scales(x.scales + b * x.rows), sums(x.sums + b * x.rows), scaled_sums(x.scaled_sums + b * x.rows) {
      if constexpr (kLayout.head != 0) {
        d = Isa::Mul(Isa::LoadF16(head + 2 * first), Isa::LoadI8(block + kLayout.scales + first));
        if constexpr (kLayout.offset_bits != 0) return;
        const Float dmin = Isa::LoadF16(head + 2 * (kInt8GroupRows + first));
        m = Isa::Mul(Isa::Mul(dmin, Isa::LoadI8(block + kLayout.minima + first)), Isa::SetFloat(-1.0f));
      } else {
        d = Isa::LoadF16(block + kLayout.scales + 2 * first);
        if constexpr (kLayout.offset_bits == 0) m = Isa::LoadF16(block + kLayout.minima + 2 * first);
      }
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

  // u = low + 16 * high, where products of whole bytes would be too large for the sums of pairs.
  static void AddByHalves(const uint8_t* block, int first, const int8_t* q, const Terms& terms, int64_t rows,
                          float* y) {
    alignas(64) int32_t low[kInt8PanelRows * Isa::kRows];
    {
      const Int8Quartets<Isa> w = Elements::Low(block, first);
      for (int64_t r = 0; r < rows; ++r) {
        Isa::Store(low + r * Isa::kRows, Isa::template Sum<4>(w, q + r * kInt8Block));
      }
    }
    const Int8Quartets<Isa> w = Elements::High(block, first);
    for (int64_t r = 0; r < rows; ++r) {
      const Int high = Isa::template ShiftLeft32<4>(Isa::template Sum<4>(w, q + r * kInt8Block));
      terms.Add(r, Isa::Add32(Isa::Load(low + r * Isa::kRows), high), y + r * kInt8GroupRows + first);
    }
  }
};

// Types whose rows have two, one for either half of a block.
template <class Isa, WeightType type>
class Int8HalvesProduct {
 public:
  // As Int8BlockProduct.
  static inline void Add(const uint8_t* head, const uint8_t* block, int first, int64_t b, const Int8Panel& x,
                         float* y) {
    const int8_t* const q = x.q + b * x.rows * kInt8Block;
    const float* const scales = x.scales + b * x.rows;
    const int32_t* const half_sums = x.half_sums + 2 * b * x.rows;
    const Int8Quartets<Isa> w = Int8Elements<Isa, type>::Whole(block, first);
    const Float d = Isa::LoadF16(head + 2 * first);
    const Float scale0 = Isa::LoadI8(block + kLayout.scales + first);
    const Float scale1 = Isa::LoadI8(block + kLayout.scales + kInt8GroupRows + first);
    const Minima minima(head, block, first);
    for (int64_t r = 0; r < x.rows; ++r) {
      float* const to = y + r * kInt8GroupRows + first;
      const Float sum0 = HalfSum(w.u, q + r * kInt8Block, half_sums[2 * r]);
      const Float sum1 = HalfSum(w.u + 4, q + r * kInt8Block + kInt8Block / 2, half_sums[2 * r + 1]);
      const Float scale = Isa::SetFloat(scales[r]), sum = Isa::Fma(scale1, sum1, Isa::Mul(scale0, sum0));
      const Float out = Isa::Fma(Isa::Mul(d, scale), sum, Isa::LoadFloat(to));
      Isa::StoreFloat(to, minima.AddTo(out, scale, half_sums + 2 * r));
    }
  }

 private:
  using Int = typename Isa::Int;
  using Float = typename Isa::Float;
  static constexpr Int8Layout kLayout = Int8LayoutOf(type);

  // sum((u - offset) * q) of half a block.
  static inline __attribute__((always_inline)) Float HalfSum(const Int* u, const int8_t* q, int32_t sum_of_q) {
    Int sum = Isa::template HalfSum<kLayout.bits>(u, q);
    if constexpr (kLayout.offset_bits != 0) {
      sum = Isa::Sub32(sum, Isa::template ShiftLeft32<kLayout.offset_bits>(Isa::Set32(sum_of_q)));
    }
    return Isa::ToFloat(sum);
  }

  struct Minima {
    Minima(const uint8_t* head, const uint8_t* block, int first) {
      if constexpr (kLayout.offset_bits != 0) return;
      d = Isa::Mul(Isa::LoadF16(head + 2 * (kInt8GroupRows + first)), Isa::SetFloat(-1.0f));
      m0 = Isa::LoadI8(block + kLayout.minima + first);
      m1 = Isa::LoadI8(block + kLayout.minima + kInt8GroupRows + first);
    }
    inline __attribute__((always_inline)) Float AddTo(Float y, Float scale, const int32_t* half_sums) const {
      if constexpr (kLayout.offset_bits != 0) return y;
      const Float sum = Isa::Fma(m1, Isa::SetFloat(static_cast<float>(half_sums[1])),
                                 Isa::Mul(m0, Isa::SetFloat(static_cast<float>(half_sums[0]))));
      return Isa::Fma(Isa::Mul(d, scale), sum, y);
    }
    Float d, m0, m1;
  };
};

template <class Isa, WeightType type>
static void Int8GroupOf(const Int8View& w, int64_t group, const Int8Panel& x, float* y) {
  constexpr Int8Layout kLayout = Int8LayoutOf(type);
  const uint8_t* block = reinterpret_cast<const uint8_t*>(w.groups) + group * Int8BlockAt(kLayout, w.blocks);
  const uint8_t* head = nullptr;
  std::memset(y, 0, x.rows * kInt8GroupRows * sizeof(float));
  for (int64_t b = 0; b < w.blocks; ++b, block += kLayout.bytes) {
    if (kLayout.head != 0 && b % (kSuperblock / kInt8Block) == 0) {
      head = block;
      block += kLayout.head;
    }
    for (int first = 0; first < kInt8GroupRows; first += Isa::kRows) {
      if constexpr (kLayout.halves == 1) {
        Int8BlockProduct<Isa, type>::Add(head, block, first, b, x, y);
      } else {
        Int8HalvesProduct<Isa, type>::Add(head, block, first, b, x, y);
      }
    }
  }
}

// By the type of the weights.
template <class Isa>
static void Int8Group(const Int8View& w, int64_t group, const Int8Panel& x, float* y) {
  switch (w.type) {
    case WeightType::kQ4_0:
      return Int8GroupOf<Isa, WeightType::kQ4_0>(w, group, x, y);
    case WeightType::kQ4_1:
      return Int8GroupOf<Isa, WeightType::kQ4_1>(w, group, x, y);
    case WeightType::kQ5_0:
      return Int8GroupOf<Isa, WeightType::kQ5_0>(w, group, x, y);
    case WeightType::kQ5_1:
      return Int8GroupOf<Isa, WeightType::kQ5_1>(w, group, x, y);
    case WeightType::kQ8_0:
      return Int8GroupOf<Isa, WeightType::kQ8_0>(w, group, x, y);
    case WeightType::kQ2_K:
      return Int8GroupOf<Isa, WeightType::kQ2_K>(w, group, x, y);
    case WeightType::kQ3_K:
      return Int8GroupOf<Isa, WeightType::kQ3_K>(w, group, x, y);
    case WeightType::kQ4_K:
      return Int8GroupOf<Isa, WeightType::kQ4_K>(w, group, x, y);
    case WeightType::kQ5_K:
      return Int8GroupOf<Isa, WeightType::kQ5_K>(w, group, x, y);
    case WeightType::kQ6_K:
      return Int8GroupOf<Isa, WeightType::kQ6_K>(w, group, x, y);
    case WeightType::kIQ4_NL:
      return Int8GroupOf<Isa, WeightType::kIQ4_NL>(w, group, x, y);
    case WeightType::kIQ4_XS:
      return Int8GroupOf<Isa, WeightType::kIQ4_XS>(w, group, x, y);
    default:
      __builtin_trap();  // Int8Weights takes types that HasInt8Layout only
  }
}

}  // namespace runahead
