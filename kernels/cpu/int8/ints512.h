// Integers and floats of 512 bits that the instruction sets of the 8-bit products share: all sixteen rows of a group in
// a register, two groups for each load of activations. Include only from files that are compiled for AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace runahead {

// Tag: a type of the including file, so that no two files that are compiled differently share a function.
template <class Tag>
struct Ints512 {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int kRows = 16;
  static constexpr int kGroups = 2;
  static constexpr bool kTakesBytes = true;

  static Int Load(const void* p) { return _mm512_loadu_si512(p); }
  static void Store(void* p, Int x) { _mm512_storeu_si512(p, x); }
  static Int Set8(int8_t x) { return _mm512_set1_epi8(x); }
  static Int Set32(int32_t x) { return _mm512_set1_epi32(x); }
  static Int And(Int a, Int b) { return _mm512_and_si512(a, b); }
  static Int Or(Int a, Int b) { return _mm512_or_si512(a, b); }
  template <int kBits>
  static Int ShiftLeft16(Int a) {
    return _mm512_slli_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftRight16(Int a) {
    return _mm512_srli_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftLeft32(Int a) {
    return _mm512_slli_epi32(a, kBits);
  }
  static Int Add32(Int a, Int b) { return _mm512_add_epi32(a, b); }
  // Quartet k of a quantised block, for all rows.
  static Int Quartet(const int8_t* q, int k) {
    int32_t four;
    __builtin_memcpy(&four, q + 4 * k, sizeof(four));
    return _mm512_set1_epi32(four);
  }

  static Float LoadFloat(const float* p) { return _mm512_loadu_ps(p); }
  static void StoreFloat(float* p, Float x) { _mm512_storeu_ps(p, x); }
  static Float SetFloat(float x) { return _mm512_set1_ps(x); }
  static Float LoadF16(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // Signed bytes.
  static Float LoadI8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  // Byte i of LookUp is table[index[i]], the indexes below 16.
  static Int Table(const uint8_t* table) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  }
  static Int LookUp(Int table, Int index) { return _mm512_shuffle_epi8(table, index); }
  static Float ToFloat(Int x) { return _mm512_cvtepi32_ps(x); }
  static Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float Fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace runahead
