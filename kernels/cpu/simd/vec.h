// Sixteen f32 lanes, the same on AVX2 and AVX-512: what the kernels of this folder are written in.
//
// Every file of this folder is compiled once per ISA, with RUNAHEAD_ISA as its namespace, so nothing here may be seen
// by a file that is built for the baseline, and these files include no header with inline functions of other namespaces
// (the linker could keep a copy that older machines cannot run). Lanes are added up in one fixed order and nothing is
// contracted behind our back (-ffp-contract=off), so both ISAs give bitwise the same results.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace runahead::RUNAHEAD_ISA {

inline constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct Vec {
  __m512 v;
};

inline Vec Zero() {
  return {_mm512_setzero_ps()};
}
inline Vec Set1(float x) {
  return {_mm512_set1_ps(x)};
}
inline Vec Load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void Store(float* p, Vec a) {
  _mm512_storeu_ps(p, a.v);
}
inline Vec Add(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec Sub(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec Mul(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec Div(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Vec Max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Vec Min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline Vec Fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline Vec Round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline uint32_t GreaterBits(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}

// a * 2^n for integral n in [-126, 127].
inline Vec ScaleByPowerOfTwo(Vec a, Vec n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
  return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(exponent))};
}

inline Vec LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Rounds to nearest even, as ToFloat16 of kernels/base/dtype.h.
inline void StoreF16(Float16* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec LoadBF16(const uint16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
// Rounds to nearest even, as ToBFloat16 of kernels/base/dtype.h; NaN stays NaN.
inline void StoreBF16(uint16_t* p, Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, _mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(rounded));
}
inline Vec LoadI8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

// First the halves of 16 lanes, then of 8: four lanes are left.
inline __m128 FoldToFour(Vec a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

#else

struct Vec {
  __m256 lo, hi;
};

inline Vec Zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline Vec Set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline Vec Load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void Store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline Vec Add(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Vec Sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline Vec Mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Vec Div(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline Vec Max(Vec a, Vec b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline Vec Min(Vec a, Vec b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline Vec Fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec Round(Vec a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
}
inline uint32_t GreaterBits(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))) << 8;
}

inline __m256 ScaleByPowerOfTwo(__m256 a, __m256 n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(exponent));
}
// a * 2^n for integral n in [-126, 127].
inline Vec ScaleByPowerOfTwo(Vec a, Vec n) {
  return {ScaleByPowerOfTwo(a.lo, n.lo), ScaleByPowerOfTwo(a.hi, n.hi)};
}

inline Vec LoadF16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
// Rounds to nearest even, as ToFloat16 of kernels/base/dtype.h.
inline void StoreF16(Float16* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256 EightBF16(const uint16_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
inline Vec LoadBF16(const uint16_t* p) {
  return {EightBF16(p), EightBF16(p + 8)};
}
// The bf16 bits of eight lanes, each in the low half of a 32-bit lane.
inline __m256i RoundToBF16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
// Rounds to nearest even, as ToBFloat16 of kernels/base/dtype.h; NaN stays NaN.
inline void StoreBF16(uint16_t* p, Vec a) {
  const __m256i packed = _mm256_packus_epi32(RoundToBF16(a.lo), RoundToBF16(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
inline __m256 EightI8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Vec LoadI8(const int8_t* p) {
  return {EightI8(p), EightI8(p + 8)};
}

// First the halves of 16 lanes, then of 8: four lanes are left.
inline __m128 FoldToFour(Vec a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

#endif

// Lanes 0 and 2, 1 and 3, then both sums.
inline float AddLanes(Vec a) {
  const __m128 four = FoldToFour(a);
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// AddLanes of four vectors at once, bitwise the same.
inline __m128 AddLanes4(Vec a, Vec b, Vec c, Vec d) {
  __m128 r0 = FoldToFour(a), r1 = FoldToFour(b), r2 = FoldToFour(c), r3 = FoldToFour(d);
  _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
  return _mm_add_ps(_mm_add_ps(r0, r2), _mm_add_ps(r1, r3));
}

#if defined(__AVX512F__)
// AddLanes of sixteen vectors at once, bitwise the same: out[i] is the sum of v[i].
inline void AddLanes16(const Vec* v, float* out) {
  __m512 four[4];  // four[i] holds, in its quarter j, the folded v[4 * j + i]
  for (int i = 0; i < 4; ++i) {
    const __m512 a = v[i].v, b = v[4 + i].v, c = v[8 + i].v, d = v[12 + i].v;
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  }
  const __m512 lower = _mm512_add_ps(_mm512_unpacklo_ps(four[0], four[1]), _mm512_unpackhi_ps(four[0], four[1]));
  const __m512 upper = _mm512_add_ps(_mm512_unpacklo_ps(four[2], four[3]), _mm512_unpackhi_ps(four[2], four[3]));
  _mm512_storeu_ps(out, _mm512_add_ps(_mm512_shuffle_ps(lower, upper, 0x44), _mm512_shuffle_ps(lower, upper, 0xee)));
}
#endif

// out[i] = AddLanes(v[i]).
template <int kCount>
inline void AddLanesOf(const Vec (&v)[kCount], float (&out)[kCount]) {
#if defined(__AVX512F__)
  if constexpr (kCount == 16) return AddLanes16(v, out);
#endif
  int i = 0;
  for (; i + 4 <= kCount; i += 4) _mm_storeu_ps(out + i, AddLanes4(v[i], v[i + 1], v[i + 2], v[i + 3]));
  for (; i < kCount; ++i) out[i] = AddLanes(v[i]);
}

// The first n < 16 lanes from memory, the others `fill`.
inline Vec LoadPartial(const float* p, int64_t n, float fill = 0.0f) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < n ? p[i] : fill;
  return Load(lanes);
}
inline Vec LoadPartialBF16(const uint16_t* p, int64_t n) {
  uint16_t lanes[kLanes] = {};
  std::memcpy(lanes, p, n * sizeof(uint16_t));
  return LoadBF16(lanes);
}
inline void StorePartial(float* p, Vec a, int64_t n) {
  float lanes[kLanes];
  Store(lanes, a);
  std::memcpy(p, lanes, n * sizeof(float));
}
inline void StorePartialBF16(uint16_t* p, Vec a, int64_t n) {
  uint16_t lanes[kLanes];
  StoreBF16(lanes, a);
  std::memcpy(p, lanes, n * sizeof(uint16_t));
}

// One name for both element types, with n lanes (16 or less).
inline Vec LoadN(const float* p, int64_t n) {
  return n >= kLanes ? Load(p) : LoadPartial(p, n);
}
inline Vec LoadN(const uint16_t* bf16, int64_t n) {
  return n >= kLanes ? LoadBF16(bf16) : LoadPartialBF16(bf16, n);
}
inline void StoreN(float* p, Vec a, int64_t n) {
  n >= kLanes ? Store(p, a) : StorePartial(p, a, n);
}
inline void StoreN(Float16* p, Vec a, int64_t n) {
  if (n >= kLanes) return StoreF16(p, a);
  Float16 lanes[kLanes];
  StoreF16(lanes, a);
  std::memcpy(p, lanes, n * sizeof(Float16));
}
inline void StoreN(uint16_t* bf16, Vec a, int64_t n) {
  n >= kLanes ? StoreBF16(bf16, a) : StorePartialBF16(bf16, a, n);
}

// e^x within 2 ulp for x in [-87.3, 88.3]; arguments beyond are taken as the ends of this range. NaN is not preserved.
inline Vec Exp(Vec x) {
  x = Min(Max(x, Set1(-87.3f)), Set1(88.3f));
  const Vec n = Round(Mul(x, Set1(1.44269504f)));
  // r = x - n ln 2, with ln 2 in two floats.
  Vec r = Fma(n, Set1(-0.693147182f), x);
  r = Fma(n, Set1(1.90465421e-9f), r);
  // |r| <= ln(2)/2, where the Taylor series ends below a tenth of an ulp after seven terms.
  Vec p = Set1(1.0f / 5040);
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = Fma(p, r, Set1(c));
  return ScaleByPowerOfTwo(p, n);
}

}  // namespace runahead::RUNAHEAD_ISA
