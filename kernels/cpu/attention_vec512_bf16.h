// Vec512 with what the attention templates of bf16 ask for besides. Include only from files compiled for AVX512_BF16.
// Only attention_avx512_bf16.cc uses it as it is; a file with other flags derives a type, so that templates over that
// are its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_vec512.h"

namespace runahead {

struct Vec512Bf16 : Vec512 {
  using Row = __m256i;    // sixteen elements
  using Pairs = __m512i;  // sixteen pairs, the first of a pair in the low half of its lane

  RUNAHEAD_INLINE Row ZeroRow() { return _mm256_setzero_si256(); }
  RUNAHEAD_INLINE Pairs ZeroPairs() { return _mm512_setzero_si512(); }
  // The first `left` elements (all where there are fewer), then zeros, rounded to bf16 where they are something else.
  // left > 0.
  RUNAHEAD_INLINE Row LoadRow(const BFloat16* p, int left) { return _mm256_maskz_loadu_epi16(First16(left), p); }
  RUNAHEAD_INLINE Row LoadRow(const Float16* p, int left) {
    const __m256bh row = _mm512_cvtneps_pbh(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(First16(left), p)));
    return reinterpret_cast<__m256i>(row);
  }
  RUNAHEAD_INLINE Pairs LoadPairs(const BFloat16* p, int left) {
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>(left >= 32 ? 0xffffffffu : (1u << left) - 1), p);
  }
  RUNAHEAD_INLINE Pairs LoadPairs(const Float16* p, int left) {
    const __m256i low = _mm256_maskz_loadu_epi16(First16(left), p);
    const __m256i high = _mm256_maskz_loadu_epi16(First16(left - 16), p + 16);
    return ToPairs(_mm512_cvtph_ps(low), _mm512_cvtph_ps(high));
  }
  RUNAHEAD_INLINE Pairs LoadPairs(const float* p, int left) {
    return ToPairs(_mm512_maskz_loadu_ps(First16(left), p), _mm512_maskz_loadu_ps(First16(left - 16), p + 16));
  }
  // To memory that is aligned as the vector is.
  RUNAHEAD_INLINE void StorePairs(void* p, Pairs x) { _mm512_store_si512(p, x); }
  // Infinities and NaN become zero; *bad is set if there is one.
  RUNAHEAD_INLINE Row FiniteRow(Row x, bool* bad) {
    const __m256i exponent = _mm256_set1_epi16(0x7f80);
    const __mmask16 odd = _mm256_cmpeq_epi16_mask(_mm256_and_si256(x, exponent), exponent);
    *bad |= odd != 0;
    return _mm256_mask_mov_epi16(x, odd, _mm256_setzero_si256());
  }
  // Pair i: element i of both.
  RUNAHEAD_INLINE Pairs Interleave(Row first, Row second) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
  }
  // Pair j of in[i] becomes pair i of vector j of `out`, which is aligned.
  RUNAHEAD_INLINE void TransposePairs(const Pairs (&in)[16], std::byte* out) {
    T lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = _mm512_castsi512_ps(in[i]);
    Transpose(lanes);
    for (int i = 0; i < 16; ++i) _mm512_store_ps(out + i * sizeof(T), lanes[i]);
  }
  // The elements of `low`, then those of `high`, in bf16, nearest even; at any address.
  RUNAHEAD_INLINE void StoreBf16(void* p, T low, T high) {
    const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
    __builtin_memcpy(p, &both, sizeof(both));
  }
  // c plus the products of the pairs of bf16 that the lanes of a and b hold.
  RUNAHEAD_INLINE T FmaPairs(T a, T b, T c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // Bit i: whether lane i of a and b differ.
  RUNAHEAD_INLINE uint32_t Differ(T a, T b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }

 private:
  // The first `count` of sixteen lanes; none below 1.
  RUNAHEAD_INLINE __mmask16 First16(int count) {
    return static_cast<__mmask16>(count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1);
  }
  // The elements of `low`, then those of `high`.
  RUNAHEAD_INLINE Pairs ToPairs(T low, T high) {
    const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
    return reinterpret_cast<Pairs>(both);
  }
};

}  // namespace runahead
