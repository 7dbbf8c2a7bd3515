// Products in 8 bits for AVX2, which adds products of bytes in pairs, in 16 bits with saturation: u is kept so small
// that no sum of them can reach it. Compiled with the flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/int8/group_template.h"
#include "kernels/cpu/int8/ints256.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/int8/quantize_row.h"

namespace runahead {
namespace {

struct Avx2 : Ints256<Avx2> {
  static constexpr bool kTakesBytes = false;

  // start + sum(u*q) of a block, u below 2^kBits. A pair is at most 2 * 15 * 128 = 3,840 with 4 bits, and eight of them
  // fit 16 bits; with 5 bits it is 7,936, and four fit. (q is above -128 where x is finite.)
  template <int kBits>
  static inline __attribute__((always_inline)) __m256i Sum(const __m256i* u, const int8_t* q, __m256i start) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i even = _mm256_maddubs_epi16(u[0], Quartet(q, 0));
    __m256i odd = _mm256_maddubs_epi16(u[1], Quartet(q, 1));
#pragma GCC unroll 3
    for (int k = 2; k < 8; k += 2) {
      even = _mm256_add_epi16(even, _mm256_maddubs_epi16(u[k], Quartet(q, k)));
      odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(u[k + 1], Quartet(q, k + 1)));
    }
    if constexpr (kBits <= 4) {
      return _mm256_add_epi32(start, _mm256_madd_epi16(_mm256_add_epi16(even, odd), ones));
    }
    return _mm256_add_epi32(_mm256_add_epi32(start, _mm256_madd_epi16(even, ones)), _mm256_madd_epi16(odd, ones));
  }
  // That of half a block. With 5 bits four pairs fit, with 6 bits a pair is at most 16,128, and two fit.
  template <int kBits>
  static inline __attribute__((always_inline)) __m256i HalfSum(const __m256i* u, const int8_t* q, __m256i start) {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i low =
        _mm256_add_epi16(_mm256_maddubs_epi16(u[0], Quartet(q, 0)), _mm256_maddubs_epi16(u[1], Quartet(q, 1)));
    const __m256i high =
        _mm256_add_epi16(_mm256_maddubs_epi16(u[2], Quartet(q, 2)), _mm256_maddubs_epi16(u[3], Quartet(q, 3)));
    if constexpr (kBits <= 5) {
      return _mm256_add_epi32(start, _mm256_madd_epi16(_mm256_add_epi16(low, high), ones));
    }
    return _mm256_add_epi32(_mm256_add_epi32(start, _mm256_madd_epi16(low, ones)), _mm256_madd_epi16(high, ones));
  }
};

}  // namespace

const Int8Kernels& Avx2Int8Kernels() {
  static constexpr Int8Kernels kKernels = {"avx2", Int8QuantizeRow, Int8Strip<Avx2>};
  return kKernels;
}

}  // namespace runahead
