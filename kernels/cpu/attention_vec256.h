// Eight floats in an AVX2 register, for the attention templates. Include only from files compiled for AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/base/dtype.h"

#define RUNAHEAD_INLINE static inline __attribute__((always_inline))

namespace runahead {

struct Vec256 {
  using T = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kStripVecs = 2;  // with six rows: 12 accumulators of 16 registers

  RUNAHEAD_INLINE T Zero() { return _mm256_setzero_ps(); }
  RUNAHEAD_INLINE T Set1(float x) { return _mm256_set1_ps(x); }
  RUNAHEAD_INLINE T Load(const float* p) { return _mm256_loadu_ps(p); }
  RUNAHEAD_INLINE T Load(const Float16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  RUNAHEAD_INLINE T Load(const BFloat16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  RUNAHEAD_INLINE void Store(float* p, T x) { _mm256_storeu_ps(p, x); }
  // To bf16, nearest even; finite x.
  RUNAHEAD_INLINE void Store(BFloat16* p, T x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
  }
  RUNAHEAD_INLINE T Add(T a, T b) { return _mm256_add_ps(a, b); }
  RUNAHEAD_INLINE T Sub(T a, T b) { return _mm256_sub_ps(a, b); }
  RUNAHEAD_INLINE T Mul(T a, T b) { return _mm256_mul_ps(a, b); }
  RUNAHEAD_INLINE T Div(T a, T b) { return _mm256_div_ps(a, b); }
  RUNAHEAD_INLINE T Abs(T a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  // `magnitude`, which is not negative, with the sign of x.
  RUNAHEAD_INLINE T CopySign(T magnitude, T x) {
    return _mm256_or_ps(magnitude, _mm256_and_ps(x, _mm256_set1_ps(-0.0f)));
  }
  RUNAHEAD_INLINE T Fma(T a, T b, T c) { return _mm256_fmadd_ps(a, b, c); }
  RUNAHEAD_INLINE T Max(T a, T b) { return _mm256_max_ps(a, b); }  // b where either is NaN
  RUNAHEAD_INLINE float ReduceMax(T x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  RUNAHEAD_INLINE float ReduceAdd(T x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  // Lanes `count` and above become `fill`.
  RUNAHEAD_INLINE T FillFrom(T x, int count, float fill) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
    return _mm256_blendv_ps(_mm256_set1_ps(fill), x, _mm256_castsi256_ps(keep));
  }
  // Infinities and NaN become zero; *bad is set if there is one.
  RUNAHEAD_INLINE T Finite(T x, bool* bad) {
    const T magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    const T finite = _mm256_cmp_ps(magnitude, _mm256_set1_ps(3.402823466e38f), _CMP_LE_OQ);
    *bad |= _mm256_movemask_ps(finite) != 0xff;
    return _mm256_and_ps(x, finite);
  }
  // 2^x for x <= 0, to 1e-7; below -126 gives 0, NaN stays. The polynomial is minimax on [-1/2, 1/2] with p(0) = 1.
  RUNAHEAD_INLINE T Exp2(T x) {
    const T dead = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
    const T shift = _mm256_set1_ps(12582912.0f);  // 1.5 * 2^23: its sum with x has round(x) in the low bits
    const T z = _mm256_add_ps(x, shift);
    const T f = _mm256_sub_ps(x, _mm256_sub_ps(z, shift));
    T p = _mm256_fmadd_ps(f, Set1(0.00015353362f), Set1(0.00133988739f));
    p = _mm256_fmadd_ps(p, f, Set1(0.00961843692f));
    p = _mm256_fmadd_ps(p, f, Set1(0.0555033237f));
    p = _mm256_fmadd_ps(p, f, Set1(0.240226477f));
    p = _mm256_fmadd_ps(p, f, Set1(0.693147182f));
    p = _mm256_fmadd_ps(p, f, Set1(1.0f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(z), 23);
    const T scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
    return _mm256_or_ps(_mm256_andnot_ps(dead, scaled), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  // Lane i of the result is the sum (or maximum) of the lanes of x[i].
  template <bool kMaximum>
  RUNAHEAD_INLINE T ReduceRows(const T (&x)[8]) {
    T quads[2];
    for (int i = 0; i < 2; ++i) {
      const T ab =
          Combine<kMaximum>(_mm256_unpacklo_ps(x[4 * i], x[4 * i + 1]), _mm256_unpackhi_ps(x[4 * i], x[4 * i + 1]));
      const T cd = Combine<kMaximum>(_mm256_unpacklo_ps(x[4 * i + 2], x[4 * i + 3]),
                                     _mm256_unpackhi_ps(x[4 * i + 2], x[4 * i + 3]));
      quads[i] = Combine<kMaximum>(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    }
    return Combine<kMaximum>(_mm256_permute2f128_ps(quads[0], quads[1], 0x20),
                             _mm256_permute2f128_ps(quads[0], quads[1], 0x31));
  }
  // Lane j of x[i] becomes lane i of x[j].
  RUNAHEAD_INLINE void Transpose(T (&x)[8]) {
    T pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
      quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x20);
      x[4 + i] = _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x31);
    }
  }

 private:
  template <bool kMaximum>
  RUNAHEAD_INLINE T Combine(T a, T b) {
    return kMaximum ? _mm256_max_ps(a, b) : _mm256_add_ps(a, b);
  }
};

}  // namespace runahead
