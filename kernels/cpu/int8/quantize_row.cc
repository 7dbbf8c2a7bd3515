// Compiled for AVX2 (see CMakeLists.txt), which all machines have that run this.
#include "kernels/cpu/int8/quantize_row.h"

#include <immintrin.h>

namespace runahead {
namespace {

constexpr int kVecs = kInt8Block / 8;

__m256i Magnitude(__m256 x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

// The largest magnitude. Bits of magnitudes are ordered as they are, and NaN is above all.
float Largest(const __m256 (&x)[kVecs]) {
  __m256i max = Magnitude(x[0]);
  for (int i = 1; i < kVecs; ++i) max = _mm256_max_epi32(max, Magnitude(x[i]));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(four));
}

// Minus the sums of the sixteen bytes of either half.
__m128i MinusHalfSums(__m256i bytes) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(-1));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
  return _mm_unpacklo_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
}

}  // namespace

void Int8QuantizeRow(const float* x, int64_t blocks, int64_t row, const Int8Panel& panel) {
  constexpr float kSmallest = 0x1p-100f;  // 127 over it is far from infinite
  const Int8Panel to = panel;             // no store of a loop can change it
  for (int64_t b = 0, at = row; b < blocks; ++b, at += to.rows) {
    __m256 in[kVecs];
    for (int i = 0; i < kVecs; ++i) in[i] = _mm256_loadu_ps(x + b * kInt8Block + 8 * i);
    const float largest = Largest(in);
    const bool zero = largest < kSmallest;
    const float scale = zero ? 0.0f : largest / 127.0f;
    const __m256 factor = _mm256_set1_ps(zero ? 0.0f : 127.0f / largest);
    __m256i q[kVecs];
    for (int i = 0; i < kVecs; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(in[i], factor));
    // Packing works on halves of registers: the permutation puts fours in order again.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    const __m256i in_order = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m128i minus_sums = MinusHalfSums(in_order);
    const __m128i minus_sum = _mm_add_epi32(minus_sums, _mm_shuffle_epi32(minus_sums, 0xb1));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to.q + at * kInt8Block), in_order);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to.minus_half_sums + 2 * at), minus_sums);
    to.minus_sums[at] = _mm_cvtsi128_si32(minus_sum);
    to.scales[at] = scale;
    to.scaled_sums[at] = -scale * static_cast<float>(_mm_cvtsi128_si32(minus_sum));
  }
}

}  // namespace runahead
