// Integers and floats of 256 bits that all instruction sets of the 8-bit products share. Include only from files that
// are compiled for AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/int8/register_sums.h"

namespace runahead {

// Tag: a type of the including file, so that no two files that are compiled differently share a function.
template <class Tag>
struct Ints256 {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int kRows = 8;
  static constexpr int kGroups = 1;
  template <WeightType type, int kGroups>
  using Sums = Int8RegisterSums<Tag, type, kGroups>;

  static Int Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void Store(int32_t* p, Int x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  static Int Set8(int8_t x) { return _mm256_set1_epi8(x); }
  static Int Set32(int32_t x) { return _mm256_set1_epi32(x); }
  static Int And(Int a, Int b) { return _mm256_and_si256(a, b); }
  static Int Or(Int a, Int b) { return _mm256_or_si256(a, b); }
  template <int kBits>
  static Int ShiftLeft16(Int a) {
    return _mm256_slli_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftRight16(Int a) {
    return _mm256_srli_epi16(a, kBits);
  }
  template <int kBits>
  static Int ShiftLeft32(Int a) {
    return _mm256_slli_epi32(a, kBits);
  }
  static Int Add32(Int a, Int b) { return _mm256_add_epi32(a, b); }
  // Quartet k of a quantised block, for all rows.
  static Int Quartet(const int8_t* q, int k) {
    int32_t four;
    __builtin_memcpy(&four, q + 4 * k, sizeof(four));
    return _mm256_set1_epi32(four);
  }

  static Float LoadFloat(const float* p) { return _mm256_loadu_ps(p); }
  static void StoreFloat(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static Float SetFloat(float x) { return _mm256_set1_ps(x); }
  static Float LoadF16(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // Signed bytes.
  static Float LoadI8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  // Byte i of LookUp is table[index[i]], the indexes below 16.
  static Int Table(const uint8_t* table) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  }
  static Int LookUp(Int table, Int index) { return _mm256_shuffle_epi8(table, index); }
  static Float ToFloat(Int x) { return _mm256_cvtepi32_ps(x); }
  static Float Mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float Fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
};

}  // namespace runahead
