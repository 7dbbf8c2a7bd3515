// The product of a strip of groups with a panel, for an instruction set. Include only from files that are compiled for
// it: Isa is its integer arithmetic, a type of that file alone, and Isa::Sums adds up the products of a block
// (register_sums.h, tile_sums.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/int8/elements_template.h"
#include "kernels/cpu/int8/product.h"

namespace runahead {

// The same block of each of several groups, and the head of its superblock.
template <int kGroups>
struct Int8Blocks {
  const uint8_t* block[kGroups];
  const uint8_t* head[kGroups] = {};
};

// The sums so far, and where they go to with a block more: those of a row of the panel are a stride from the last's.
struct Int8Sums {
  const float* from = nullptr;
  int64_t from_stride = 0;
  float* to = nullptr;
  int64_t to_stride = 0;
};

// -offset * sum(q), which a sum of (u - offset) * q starts from.
template <class Isa, WeightType type>
static inline __attribute__((always_inline)) typename Isa::Int Int8Start(int32_t minus_sum) {
  constexpr int kOffsetBits = Int8LayoutOf(type).offset_bits;
  if constexpr (kOffsetBits == 0) return Isa::Set32(0);
  return Isa::template ShiftLeft32<kOffsetBits>(Isa::Set32(minus_sum));
}

// Types whose rows have one scale for a block of 32 columns; kGroups groups at once.
template <class Isa, WeightType type, int kGroups>
class Int8BlockProduct {
 public:
  // Adds block b of the rows [first, first + Isa::kRows) of each group.
  static inline void Add(const Int8Blocks<kGroups>& blocks, int first, int64_t b, const Int8Panel& x,
                         const Int8Sums& y) {
    const int8_t* const q = x.q + b * x.rows * kInt8Block;
    const RowFactors factors(b, x);
    Terms terms[kGroups];
    for (int g = 0; g < kGroups; ++g) terms[g].Load(blocks.head[g], blocks.block[g], first);
    if constexpr (!Elements::kBytes || Isa::kTakesBytes) {
      const typename Isa::template Sums<type, kGroups> products(blocks.block, first, q, x.rows);
      for (int64_t r = 0; r < x.rows; ++r) {
        Int sums[kGroups];
        const Int start = factors.Start(r);
        for (int g = 0; g < kGroups; ++g) sums[g] = products.Sum(g, r, start);
        AddRow(terms, sums, factors, r, first, y);
      }
    } else {
      static_assert(kGroups == 1);
      AddByHalves(blocks.block[0], first, q, terms, factors, x.rows, y);
    }
  }

 private:
  using Int = typename Isa::Int;
  using Float = typename Isa::Float;
  using Elements = Int8Elements<Isa, type>;
  static constexpr Int8Layout kLayout = Int8LayoutOf(type);

  // What the rows of the panel bring to a block.
  struct RowFactors {
    RowFactors(int64_t b, const Int8Panel& x)
        : scales(x.scales + b * x.rows),
          minus_sums(x.minus_sums + b * x.rows),
          scaled_sums(x.scaled_sums + b * x.rows) {}
    inline __attribute__((always_inline)) Int Start(int64_t r) const { return Int8Start<Isa, type>(minus_sums[r]); }
    const float* scales;
    const int32_t* minus_sums;
    const float* scaled_sums;
  };

  // What those of a group bring.
  struct Terms {
    inline __attribute__((always_inline)) void Load(const uint8_t* head, const uint8_t* block, int first) {
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
    Float d;
    Float m;
  };

  // Row r of the panel, `sums` being sum((u - offset) * q) by group.
  static inline __attribute__((always_inline)) void AddRow(const Terms (&terms)[kGroups], const Int (&sums)[kGroups],
                                                           const RowFactors& factors, int64_t r, int first,
                                                           const Int8Sums& y) {
    const Float scale = Isa::SetFloat(factors.scales[r]), scaled_sum = Isa::SetFloat(factors.scaled_sums[r]);
    for (int g = 0; g < kGroups; ++g) {
      const int at = g * kInt8GroupRows + first;
      Float out = Isa::LoadFloat(y.from + r * y.from_stride + at);
      out = Isa::Fma(Isa::Mul(terms[g].d, scale), Isa::ToFloat(sums[g]), out);
      if constexpr (kLayout.offset_bits == 0) out = Isa::Fma(terms[g].m, scaled_sum, out);
      Isa::StoreFloat(y.to + r * y.to_stride + at, out);
    }
  }

  // u = low + 16 * high, where products of whole bytes would be too large for the sums of pairs.
  static void AddByHalves(const uint8_t* block, int first, const int8_t* q, const Terms (&terms)[kGroups],
                          const RowFactors& factors, int64_t rows, const Int8Sums& y) {
    alignas(64) int32_t low[kInt8PanelRows * Isa::kRows];
    {
      const Int8Quartets<Isa> w = Elements::Low(block, first);
      for (int64_t r = 0; r < rows; ++r) {
        Isa::Store(low + r * Isa::kRows, Isa::template Sum<4>(w.u, q + r * kInt8Block, factors.Start(r)));
      }
    }
    const Int8Quartets<Isa> w = Elements::High(block, first);
    for (int64_t r = 0; r < rows; ++r) {
      const Int high = Isa::template ShiftLeft32<4>(Isa::template Sum<4>(w.u, q + r * kInt8Block, Isa::Set32(0)));
      const Int sums[] = {Isa::Add32(Isa::Load(low + r * Isa::kRows), high)};
      AddRow(terms, sums, factors, r, first, y);
    }
  }
};

// Types whose rows have two, one for either half of a block.
template <class Isa, WeightType type, int kGroups>
class Int8HalvesProduct {
 public:
  // As Int8BlockProduct.
  static inline void Add(const Int8Blocks<kGroups>& blocks, int first, int64_t b, const Int8Panel& x,
                         const Int8Sums& y) {
    const int8_t* const q = x.q + b * x.rows * kInt8Block;
    const float* const scales = x.scales + b * x.rows;
    const int32_t* const minus_sums = x.minus_half_sums + 2 * b * x.rows;
    Rows rows[kGroups];
    for (int g = 0; g < kGroups; ++g) rows[g].Load(blocks.head[g], blocks.block[g], first);
    const Sums products(blocks.block, first, q, x.rows);
    for (int64_t r = 0; r < x.rows; ++r) {
      const Float scale = Isa::SetFloat(scales[r]);
      const int32_t low = minus_sums[2 * r], high = minus_sums[2 * r + 1];
      Float sums[kGroups], minima[kGroups];
      for (int g = 0; g < kGroups; ++g) {
        sums[g] = rows[g].Product(products.HalfSum(g, 0, r, Int8Start<Isa, type>(low)),
                                  products.HalfSum(g, 1, r, Int8Start<Isa, type>(high)));
        if constexpr (kMinima) minima[g] = rows[g].Minima(low, high);
      }
      for (int g = 0; g < kGroups; ++g) {
        const int at = g * kInt8GroupRows + first;
        Float out = Isa::LoadFloat(y.from + r * y.from_stride + at);
        out = Isa::Fma(Isa::Mul(rows[g].d, scale), sums[g], out);
        if constexpr (kMinima) out = Isa::Fma(Isa::Mul(rows[g].dmin, scale), minima[g], out);
        Isa::StoreFloat(y.to + r * y.to_stride + at, out);
      }
    }
  }

 private:
  using Int = typename Isa::Int;
  using Float = typename Isa::Float;
  using Sums = typename Isa::template Sums<type, kGroups>;
  static constexpr Int8Layout kLayout = Int8LayoutOf(type);
  static constexpr bool kMinima = kLayout.offset_bits == 0;

  // What those of a group bring.
  struct Rows {
    inline __attribute__((always_inline)) void Load(const uint8_t* head, const uint8_t* block, int first) {
      d = Isa::LoadF16(head + 2 * first);
      for (int h = 0; h < 2; ++h) scales[h] = Isa::LoadI8(block + kLayout.scales + h * kInt8GroupRows + first);
      if constexpr (!kMinima) return;
      dmin = Isa::LoadF16(head + 2 * (kInt8GroupRows + first));
      for (int h = 0; h < 2; ++h) minima[h] = Isa::LoadI8(block + kLayout.minima + h * kInt8GroupRows + first);
    }
    // sum_h(scale_h * sum_h), of sum_h((u - offset) * q)
    inline __attribute__((always_inline)) Float Product(Int low, Int high) const {
      return Isa::Fma(scales[1], Isa::ToFloat(high), Isa::Mul(scales[0], Isa::ToFloat(low)));
    }
    // -sum_h(min_h * sum_h(q))
    inline __attribute__((always_inline)) Float Minima(int32_t minus_low, int32_t minus_high) const {
      return Isa::Fma(minima[1], Isa::SetFloat(static_cast<float>(minus_high)),
                      Isa::Mul(minima[0], Isa::SetFloat(static_cast<float>(minus_low))));
    }
    Float d, dmin, scales[2], minima[2];
  };
};

template <class Isa, WeightType type, int kGroups>
static void Int8GroupsOf(const Int8View& w, int64_t group, const Int8Panel& x, const Int8Out& out) {
  constexpr Int8Layout kLayout = Int8LayoutOf(type);
  const size_t group_bytes = Int8BlockAt(kLayout, w.blocks);
  // Between the first block and the last the sums stay in the cache, wherever `out` is.
  alignas(64) float y[kInt8PanelRows * kGroups * kInt8GroupRows];
  alignas(64) static constexpr float kZeros[kGroups * kInt8GroupRows] = {};
  Int8Sums sums = {kZeros, 0, y, kGroups * kInt8GroupRows};
  if (out.accumulate) sums = {out.at, out.stride, y, kGroups * kInt8GroupRows};
  Int8Blocks<kGroups> blocks;
  for (int g = 0; g < kGroups; ++g) {
    blocks.block[g] = reinterpret_cast<const uint8_t*>(w.groups) + (group + g) * group_bytes;
  }
  // The groups after these, most likely the next, are asked for in the order of memory, some with each block: so they
  // come while rows are multiplied. One row or two take no longer than memory does, and prefetches would only delay
  // them.
  constexpr int64_t kLeastRows = 4;
  const uint8_t* ahead = blocks.block[kGroups - 1] + group_bytes;
  const uint8_t* const next = ahead;
  const int64_t next_blocks = x.rows < kLeastRows ? 0 : w.blocks;
  int64_t prefetched = 0;
  for (int64_t b = 0; b < w.blocks; ++b) {
    if (b == w.blocks - 1) sums.to = out.at, sums.to_stride = out.stride;
    if (kLayout.head != 0 && b % (kSuperblock / kInt8Block) == 0) {
      for (int g = 0; g < kGroups; ++g) {
        blocks.head[g] = blocks.block[g];
        blocks.block[g] += kLayout.head;
      }
    }
    const uint8_t* const until = next + kGroups * Int8BlockAt(kLayout, b < next_blocks ? b + 1 : 0);
    for (; ahead < until; ahead += 64) __builtin_prefetch(ahead);
    // Rows of `out`, which is rarely in a near cache, are asked for in time, some with each block.
    for (; prefetched * w.blocks < (b + 1) * x.rows; ++prefetched) {
      const float* const row = out.at + prefetched * out.stride;
      for (int g = 0; g < kGroups; ++g) __builtin_prefetch(row + g * kInt8GroupRows, 1);
    }
    for (int first = 0; first < kInt8GroupRows; first += Isa::kRows) {
      if constexpr (kLayout.halves == 1) {
        Int8BlockProduct<Isa, type, kGroups>::Add(blocks, first, b, x, sums);
      } else {
        Int8HalvesProduct<Isa, type, kGroups>::Add(blocks, first, b, x, sums);
      }
    }
    for (int g = 0; g < kGroups; ++g) blocks.block[g] += kLayout.bytes;
    sums.from = y;
    sums.from_stride = kGroups * kInt8GroupRows;
  }
}

template <class Isa, WeightType type>
static void Int8StripOf(const Int8View& w, int64_t group, int groups, const Int8Panel& x, const Int8Out& out) {
  static_assert(HasInt8Form(type));
  const auto columns = [&](int g) { return Int8Out{out.at + g * kInt8GroupRows, out.stride, out.accumulate}; };
  int g = 0;
  for (; g + Isa::kGroups <= groups; g += Isa::kGroups) {
    Int8GroupsOf<Isa, type, Isa::kGroups>(w, group + g, x, columns(g));
  }
  if constexpr (Isa::kGroups > 1) {
    for (; g < groups; ++g) Int8GroupsOf<Isa, type, 1>(w, group + g, x, columns(g));
  }
}

// By the type of the weights.
template <class Isa>
static void Int8Strip(const Int8View& w, int64_t group, int groups, const Int8Panel& x, const Int8Out& out) {
  switch (w.type) {
    case WeightType::kQ4_0:
      return Int8StripOf<Isa, WeightType::kQ4_0>(w, group, groups, x, out);
    case WeightType::kQ4_1:
      return Int8StripOf<Isa, WeightType::kQ4_1>(w, group, groups, x, out);
    case WeightType::kQ5_0:
      return Int8StripOf<Isa, WeightType::kQ5_0>(w, group, groups, x, out);
    case WeightType::kQ5_1:
      return Int8StripOf<Isa, WeightType::kQ5_1>(w, group, groups, x, out);
    case WeightType::kQ8_0:
      return Int8StripOf<Isa, WeightType::kQ8_0>(w, group, groups, x, out);
    case WeightType::kQ2_K:
      return Int8StripOf<Isa, WeightType::kQ2_K>(w, group, groups, x, out);
    case WeightType::kQ3_K:
      return Int8StripOf<Isa, WeightType::kQ3_K>(w, group, groups, x, out);
    case WeightType::kQ4_K:
      return Int8StripOf<Isa, WeightType::kQ4_K>(w, group, groups, x, out);
    case WeightType::kQ5_K:
      return Int8StripOf<Isa, WeightType::kQ5_K>(w, group, groups, x, out);
    case WeightType::kQ6_K:
      return Int8StripOf<Isa, WeightType::kQ6_K>(w, group, groups, x, out);
    case WeightType::kIQ4_NL:
      return Int8StripOf<Isa, WeightType::kIQ4_NL>(w, group, groups, x, out);
    case WeightType::kIQ4_XS:
      return Int8StripOf<Isa, WeightType::kIQ4_XS>(w, group, groups, x, out);
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      __builtin_trap();  // Int8Weights takes types that HasInt8Form only
  }
}

}  // namespace runahead
