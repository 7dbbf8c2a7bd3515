// Sixteen floats in an AVX-512 register, for the attention templates. Include only from files compiled for AVX-512.
#pragma once

#include <cstdint>

// g++ 12 warns about _mm512_undefined_epi32 in its own header.
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "kernels/base/dtype.h"

#define RUNAHEAD_INLINE static inline __attribute__((always_inline))

namespace runahead {

struct Vec512 {
  using T = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kStripVecs = 4;  // with six rows: 24 accumulators, four loads, broadcasts from memory

  RUNAHEAD_INLINE T Zero() { return _mm512_setzero_ps(); }
  RUNAHEAD_INLINE T Set1(float x) { return _mm512_set1_ps(x); }
  RUNAHEAD_INLINE T Load(const float* p) { return _mm512_loadu_ps(p); }
  RUNAHEAD_INLINE T Load(const Float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  RUNAHEAD_INLINE T Load(const BFloat16* p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  // The first eight lanes from memory, the rest zero.
  RUNAHEAD_INLINE T LoadHalf(const float* p) { return _mm512_zextps256_ps512(_mm256_loadu_ps(p)); }
  RUNAHEAD_INLINE T LoadHalf(const Float16* p) {
    return _mm512_zextps256_ps512(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  RUNAHEAD_INLINE T LoadHalf(const BFloat16* p) {
    const __m256i wide = _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(wide), 16));
  }
  RUNAHEAD_INLINE void Store(float* p, T x) { _mm512_storeu_ps(p, x); }
  RUNAHEAD_INLINE void StoreHalf(float* p, T x) { _mm256_storeu_ps(p, _mm512_castps512_ps256(x)); }
  // To bf16, nearest even; finite x.
  RUNAHEAD_INLINE __m256i ToBf16(T x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
  RUNAHEAD_INLINE void Store(BFloat16* p, T x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ToBf16(x)); }
  RUNAHEAD_INLINE void StoreHalf(BFloat16* p, T x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(ToBf16(x)));
  }
  RUNAHEAD_INLINE T Add(T a, T b) { return _mm512_add_ps(a, b); }
  RUNAHEAD_INLINE T Sub(T a, T b) { return _mm512_sub_ps(a, b); }
  RUNAHEAD_INLINE T Mul(T a, T b) { return _mm512_mul_ps(a, b); }
  RUNAHEAD_INLINE T Div(T a, T b) { return _mm512_div_ps(a, b); }
  RUNAHEAD_INLINE T Abs(T a) { return _mm512_abs_ps(a); }
  // `magnitude`, which is not negative, with the sign of x.
  RUNAHEAD_INLINE T CopySign(T magnitude, T x) {
    return _mm512_or_ps(magnitude, _mm512_and_ps(x, _mm512_set1_ps(-0.0f)));
  }
  RUNAHEAD_INLINE T Fma(T a, T b, T c) { return _mm512_fmadd_ps(a, b, c); }
  RUNAHEAD_INLINE T Max(T a, T b) { return _mm512_max_ps(a, b); }  // b where either is NaN
  RUNAHEAD_INLINE float ReduceMax(T x) { return _mm512_reduce_max_ps(x); }
  RUNAHEAD_INLINE float ReduceAdd(T x) { return _mm512_reduce_add_ps(x); }
  // Lanes `count` and above become `fill`.
  RUNAHEAD_INLINE T FillFrom(T x, int count, float fill) {
    const uint32_t keep = count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1;
    return _mm512_mask_mov_ps(_mm512_set1_ps(fill), static_cast<__mmask16>(keep), x);
  }
  // Infinities and NaN become zero; *bad is set if there is one.
  RUNAHEAD_INLINE T Finite(T x, bool* bad) {
    const __mmask16 odd = _mm512_fpclass_ps_mask(x, 0x99);
    *bad |= odd != 0;
    return _mm512_mask_mov_ps(x, odd, _mm512_setzero_ps());
  }
  // 2^x for x <= 0, to 1e-7; -inf gives 0, NaN stays. The polynomial is minimax on [0, 1] with p(0) = 1.
  RUNAHEAD_INLINE T Exp2(T x) {
    const T f = _mm512_reduce_ps(x, 1);  // x - floor(x)
    T p = _mm512_fmadd_ps(f, Set1(0.000216129149f), Set1(0.0012467847f));
    p = _mm512_fmadd_ps(p, f, Set1(0.00967545155f));
    p = _mm512_fmadd_ps(p, f, Set1(0.0554852821f));
    p = _mm512_fmadd_ps(p, f, Set1(0.240229309f));
    p = _mm512_fmadd_ps(p, f, Set1(0.693147063f));
    p = _mm512_fmadd_ps(p, f, Set1(1.0f));
    return _mm512_scalef_ps(p, x);
  }
  // The same to 1e-4: enough for what is rounded to bf16.
  RUNAHEAD_INLINE T Exp2ForBf16(T x) {
    const T f = _mm512_reduce_ps(x, 1);
    T p = _mm512_fmadd_ps(f, Set1(0.0770670399f), Set1(0.227644995f));
    p = _mm512_fmadd_ps(p, f, Set1(0.695116758f));
    p = _mm512_fmadd_ps(p, f, Set1(1.0f));
    return _mm512_scalef_ps(p, x);
  }
  // Lane i of the result is the sum (or maximum) of the lanes of x[i].
  template <bool kMaximum>
  RUNAHEAD_INLINE T ReduceRows(const T (&x)[16]) {
    T quads[4];
    for (int i = 0; i < 4; ++i) {
      const T ab =
          Combine<kMaximum>(_mm512_unpacklo_ps(x[4 * i], x[4 * i + 1]), _mm512_unpackhi_ps(x[4 * i], x[4 * i + 1]));
      const T cd = Combine<kMaximum>(_mm512_unpacklo_ps(x[4 * i + 2], x[4 * i + 3]),
                                     _mm512_unpackhi_ps(x[4 * i + 2], x[4 * i + 3]));
      quads[i] = Combine<kMaximum>(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    }
    const T low = Combine<kMaximum>(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88),
                                    _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
    const T high = Combine<kMaximum>(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88),
                                     _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
    return Combine<kMaximum>(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
  }
  // Lane j of x[i] becomes lane i of x[j].
  RUNAHEAD_INLINE void Transpose(T (&x)[16]) {
    T pairs[16], quads[16];
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      quads[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      quads[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
      quads[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      quads[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      const T a = _mm512_shuffle_f32x4(quads[i], quads[4 + i], 0x44);
      const T b = _mm512_shuffle_f32x4(quads[i], quads[4 + i], 0xee);
      const T c = _mm512_shuffle_f32x4(quads[8 + i], quads[12 + i], 0x44);
      const T d = _mm512_shuffle_f32x4(quads[8 + i], quads[12 + i], 0xee);
      x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      x[4 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
      x[8 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
      x[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }

 private:
  template <bool kMaximum>
  RUNAHEAD_INLINE T Combine(T a, T b) {
    return kMaximum ? _mm512_max_ps(a, b) : _mm512_add_ps(a, b);
  }
};

}  // namespace runahead
