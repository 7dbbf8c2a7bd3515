// The products of AVX-VNNI on a machine with AVX2, its one instruction emulated.
#include <immintrin.h>

#include <cstdint>

namespace runahead {

// What _mm256_dpbusd_avx_epi32 does: to each lane of `sum` its four products of an unsigned byte of a and a signed one
// of b.
static inline __m256i EmulatedDpbusd(__m256i sum, __m256i a, __m256i b) {
  alignas(32) int32_t sums[8];
  alignas(32) uint8_t u[32];
  alignas(32) int8_t s[32];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), sum);
  _mm256_store_si256(reinterpret_cast<__m256i*>(u), a);
  _mm256_store_si256(reinterpret_cast<__m256i*>(s), b);
  for (int i = 0; i < 32; ++i) sums[i / 4] += u[i] * s[i];
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(sums));
}

}  // namespace runahead

#define _mm256_dpbusd_avx_epi32 EmulatedDpbusd
#define AvxVnniInt8Kernels EmulatedAvxVnniInt8Kernels
#include "kernels/cpu/int8/product_avx_vnni.cc"
