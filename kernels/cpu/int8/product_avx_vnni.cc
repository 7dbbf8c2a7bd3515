// Products in 8 bits for AVX-VNNI. Compiled with the flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/int8/group_template.h"
#include "kernels/cpu/int8/ints256.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/int8/quantize_row.h"

namespace runahead {
namespace {

struct AvxVnni : Ints256<AvxVnni> {
  static constexpr bool kTakesBytes = true;

  template <int kBits>
  static inline __attribute__((always_inline)) __m256i Sum(const Int8Quartets<AvxVnni>& w, const int8_t* q) {
    __m256i even = _mm256_setzero_si256(), odd = even;
#pragma GCC unroll 4
    for (int k = 0; k < 8; k += 2) {
      even = _mm256_dpbusd_avx_epi32(even, w.u[k], Quartet(q, k));
      odd = _mm256_dpbusd_avx_epi32(odd, w.u[k + 1], Quartet(q, k + 1));
    }
    return _mm256_add_epi32(even, odd);
  }
  template <int kBits>
  static inline __attribute__((always_inline)) __m256i HalfSum(const __m256i* u, const int8_t* q) {
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sum = _mm256_dpbusd_avx_epi32(sum, u[k], Quartet(q, k));
    return sum;
  }
};

}  // namespace

const Int8Kernels& AvxVnniInt8Kernels() {
  static constexpr Int8Kernels kKernels = {"avx_vnni", Int8QuantizeRow, Int8Group<AvxVnni>};
  return kKernels;
}

}  // namespace runahead
