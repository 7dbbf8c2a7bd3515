// Products in 8 bits for AVX512-VNNI: all sixteen rows of a group in a register, two groups for each load of
// activations. Compiled with the flags of that ISA (see CMakeLists.txt).
#include "kernels/cpu/int8/group_template.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/int8/quantize_row.h"
#include "kernels/cpu/int8/vnni_sums.h"

namespace runahead {
namespace {

struct Avx512Vnni : VnniSums<Avx512Vnni> {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int kRows = 16;
  static constexpr int kGroups = 2;
  static constexpr bool kTakesBytes = true;

  static Int Load(const void* p) { return _mm512_loadu_si512(p); }
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

  static Int Dot(Int sum, Int u, Int q) { return _mm512_dpbusd_epi32(sum, u, q); }
};

}  // namespace

const Int8Kernels& Avx512VnniInt8Kernels() {
  static constexpr Int8Kernels kKernels = {"avx512_vnni", Int8QuantizeRow, Int8Strip<Avx512Vnni>};
  return kKernels;
}

}  // namespace runahead
