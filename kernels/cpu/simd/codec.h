// How each WeightType becomes 32 floats in two vectors. Values are exactly d*q+m: the product of an f16 and an integer
// of at most 8 bits is exact in f32, and one addition rounds.
#pragma once

#include "kernels/base/weight_type.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/vec.h"

namespace runahead::RUNAHEAD_ISA {

struct Block {
  Vec lo, hi;  // columns 0-15 and 16-31
};

#if defined(__AVX512F__)

// Element i in the low nibble of byte i, element i+16 in the high one: values are looked up in a table of sixteen.
inline Block DecodeNibbles(const uint8_t* q, Vec d, Vec m) {
  const __m512 levels = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512 table = _mm512_fmadd_ps(d.v, levels, m.v);
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  // The permutation reads the low four bits of each index only.
  return {{_mm512_permutexvar_ps(bytes, table)}, {_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table)}};
}

// Of kIq4Levels.
inline Block DecodeLevels(const uint8_t* q, Vec d) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Levels));
  const __m512 levels = _mm512_mul_ps(d.v, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(table)));
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  return {{_mm512_permutexvar_ps(bytes, levels)}, {_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), levels)}};
}

// The same with a fifth bit each: bit i of `high` belongs to element i.
inline Block DecodeFiveBits(const uint8_t* q, uint32_t high, Vec d, Vec m) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  const __m512i sixteen = _mm512_set1_epi32(16);
  const __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
  const __m512i up = _mm512_srli_epi32(bytes, 4);
  const __m512i lo = _mm512_mask_or_epi32(low, static_cast<__mmask16>(high), low, sixteen);
  const __m512i hi = _mm512_mask_or_epi32(up, static_cast<__mmask16>(high >> 16), up, sixteen);
  return {Fma(d, {_mm512_cvtepi32_ps(lo)}, m), Fma(d, {_mm512_cvtepi32_ps(hi)}, m)};
}

#else

inline Vec FromBytes(__m128i bytes) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}

// Element i in the low nibble of byte i, element i+16 in the high one.
inline Block DecodeNibbles(const uint8_t* q, Vec d, Vec m) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  const __m128i fifteen = _mm_set1_epi8(15);
  const __m128i lo = _mm_and_si128(bytes, fifteen);
  const __m128i hi = _mm_and_si128(_mm_srli_epi16(bytes, 4), fifteen);
  return {Fma(d, FromBytes(lo), m), Fma(d, FromBytes(hi), m)};
}

// Of kIq4Levels.
inline Block DecodeLevels(const uint8_t* q, Vec d) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Levels)), fifteen = _mm_set1_epi8(15);
  alignas(16) int8_t levels[32];
  _mm_store_si128(reinterpret_cast<__m128i*>(levels), _mm_shuffle_epi8(table, _mm_and_si128(bytes, fifteen)));
  _mm_store_si128(reinterpret_cast<__m128i*>(levels + 16),
                  _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), fifteen)));
  return {Mul(d, LoadI8(levels)), Mul(d, LoadI8(levels + 16))};
}

// Sixteen bits to sixteen bytes of 16 or 0.
inline __m128i FifthBits(uint32_t bits) {
  const __m128i spread = _mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(bits)),
                                          _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  const __m128i select = _mm_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(spread, select), select), _mm_set1_epi8(16));
}

// The same with a fifth bit each: bit i of `high` belongs to element i.
inline Block DecodeFiveBits(const uint8_t* q, uint32_t high, Vec d, Vec m) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  const __m128i fifteen = _mm_set1_epi8(15);
  const __m128i lo = _mm_or_si128(_mm_and_si128(bytes, fifteen), FifthBits(high));
  const __m128i hi = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(bytes, 4), fifteen), FifthBits(high >> 16));
  return {Fma(d, FromBytes(lo), m), Fma(d, FromBytes(hi), m)};
}

#endif

// What a block takes: its scales, and its bytes without them. Values of the table, and no code of it: a function that
// is compiled for this instruction set must not be one that the linker could pick for the whole binary.
template <WeightType type>
struct CodecBytes {
  static constexpr int kScales = BlockOf(type).scales;
  static constexpr int kBytes = static_cast<int>(WeightRowBytes(type, kBlockCols)) - BlockOf(type).scale_bytes();
};

// Decode(q, s): one block from its bytes and its scales (already f32). Q5: the fifth bits, then the nibbles.
template <WeightType type>
struct Codec;

template <>
struct Codec<WeightType::kF32> : CodecBytes<WeightType::kF32> {
  static Block Decode(const uint8_t* q, const float*) {
    const float* p = reinterpret_cast<const float*>(q);
    return {Load(p), Load(p + kLanes)};
  }
};
template <>
struct Codec<WeightType::kF16> : CodecBytes<WeightType::kF16> {
  static Block Decode(const uint8_t* q, const float*) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(q);
    return {LoadF16(p), LoadF16(p + kLanes)};
  }
};
template <>
struct Codec<WeightType::kBF16> : CodecBytes<WeightType::kBF16> {
  static Block Decode(const uint8_t* q, const float*) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(q);
    return {LoadBF16(p), LoadBF16(p + kLanes)};
  }
};
template <>
struct Codec<WeightType::kQ8_0> : CodecBytes<WeightType::kQ8_0> {
  static Block Decode(const uint8_t* q, const float* s) {
    const int8_t* p = reinterpret_cast<const int8_t*>(q);
    const Vec d = Set1(s[0]);
    return {Mul(d, LoadI8(p)), Mul(d, LoadI8(p + kLanes))};
  }
};
template <>
struct Codec<WeightType::kIQ4_NL> : CodecBytes<WeightType::kIQ4_NL> {
  static Block Decode(const uint8_t* q, const float* s) { return DecodeLevels(q, Set1(s[0])); }
};
template <>
struct Codec<WeightType::kQ4_0> : CodecBytes<WeightType::kQ4_0> {
  static Block Decode(const uint8_t* q, const float* s) { return DecodeNibbles(q, Set1(s[0]), Set1(-8.0f * s[0])); }
};
template <>
struct Codec<WeightType::kQ4_1> : CodecBytes<WeightType::kQ4_1> {
  static Block Decode(const uint8_t* q, const float* s) { return DecodeNibbles(q, Set1(s[0]), Set1(s[1])); }
};
template <>
struct Codec<WeightType::kQ5_0> : CodecBytes<WeightType::kQ5_0> {
  static Block Decode(const uint8_t* q, const float* s) {
    uint32_t high;
    std::memcpy(&high, q, sizeof(high));
    return DecodeFiveBits(q + 4, high, Set1(s[0]), Set1(-16.0f * s[0]));
  }
};
template <>
struct Codec<WeightType::kQ5_1> : CodecBytes<WeightType::kQ5_1> {
  static Block Decode(const uint8_t* q, const float* s) {
    uint32_t high;
    std::memcpy(&high, q, sizeof(high));
    return DecodeFiveBits(q + 4, high, Set1(s[0]), Set1(s[1]));
  }
};

// Scales of `blocks` blocks to f32. Reads whole vectors: up to 32 bytes past the last scale, which the elements cover.
inline void LoadScales(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) Store(to + i, LoadF16(from + i));
}

// visit.template operator()<type>() for the type at hand.
template <typename Visit>
inline void VisitType(WeightType type, const Visit& visit) {
  switch (type) {
    case WeightType::kF32:
      return visit.template operator()<WeightType::kF32>();
    case WeightType::kF16:
      return visit.template operator()<WeightType::kF16>();
    case WeightType::kBF16:
      return visit.template operator()<WeightType::kBF16>();
    case WeightType::kQ8_0:
      return visit.template operator()<WeightType::kQ8_0>();
    case WeightType::kQ4_0:
      return visit.template operator()<WeightType::kQ4_0>();
    case WeightType::kQ4_1:
      return visit.template operator()<WeightType::kQ4_1>();
    case WeightType::kQ5_0:
      return visit.template operator()<WeightType::kQ5_0>();
    case WeightType::kQ5_1:
      return visit.template operator()<WeightType::kQ5_1>();
    case WeightType::kIQ4_NL:
      return visit.template operator()<WeightType::kIQ4_NL>();
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K:
    case WeightType::kIQ4_XS:
      __builtin_trap();  // superblocks have no StoredView of this layout
  }
}

}  // namespace runahead::RUNAHEAD_ISA
