// Compiled for AVX2 (see CMakeLists.txt), which all machines have that run this.
#include "kernels/cpu/superblock_matvec.h"

#include <immintrin.h>

#include "kernels/cpu/int8/elements_template.h"
#include "kernels/cpu/int8/ints256.h"

namespace runahead {
namespace {

struct Ints : Ints256<Ints> {};

constexpr int64_t kMostRows = 4;  // of x at a time: sums, scales and a block's elements share sixteen registers

// What a weight is of its u: scale * u - minimum or scale * (u - offset), for either half of a block.
template <WeightType type>
struct Scales {
  static constexpr Int8Layout kLayout = Int8LayoutOf(type);
  __m256 scale[2], minimum[2];

  Scales(const uint8_t* head, const uint8_t* block, int first) {
    const __m256 d = Ints::LoadF16(head + 2 * first);
    for (int h = 0; h < 2; ++h) {
      const int at = (kLayout.halves == 2 ? h * kInt8GroupRows : 0) + first;
      scale[h] = _mm256_mul_ps(d, Ints::LoadI8(block + kLayout.scales + at));
      if constexpr (kLayout.offset_bits != 0) continue;
      const __m256 dmin = Ints::LoadF16(head + 2 * (kInt8GroupRows + first));
      minimum[h] = _mm256_mul_ps(dmin, Ints::LoadI8(block + kLayout.minima + at));
    }
  }
  __m256 Weight(__m256 u, int h) const {
    if constexpr (kLayout.offset_bits == 0) return _mm256_fmsub_ps(scale[h], u, minimum[h]);
    return _mm256_mul_ps(scale[h], _mm256_sub_ps(u, _mm256_set1_ps(1 << kLayout.offset_bits)));
  }
};

// sums[m] += the products of eight rows of a block with kRows rows of x.
template <WeightType type, int kRows>
void AddBlock(const Scales<type>& scales, const Int8Quartets<Ints>& w, const float* x, int64_t x_stride,
              __m256 (&sums)[kRows]) {
  const __m256i byte = _mm256_set1_epi32(255);
  for (int k = 0; k < 8; ++k) {
    __m256i u = w.u[k];
    for (int i = 0; i < 4; ++i, u = _mm256_srli_epi32(u, 8)) {
      const __m256 weight = scales.Weight(_mm256_cvtepi32_ps(_mm256_and_si256(u, byte)), k / 4);
      for (int m = 0; m < kRows; ++m) {
        sums[m] = _mm256_fmadd_ps(weight, _mm256_broadcast_ss(x + m * x_stride + 4 * k + i), sums[m]);
      }
    }
  }
}

// y[m][16] = the products of a group with kRows rows of x.
template <WeightType type, int kRows>
void Group(const Int8View& w, const uint8_t* group, const float* x, int64_t x_stride, float* y) {
  constexpr Int8Layout kLayout = Int8LayoutOf(type);
  for (int first = 0; first < kInt8GroupRows; first += Ints::kRows) {
    __m256 sums[kRows];
    for (__m256& sum : sums) sum = _mm256_setzero_ps();
    const uint8_t* block = group;
    const uint8_t* head = group;
    for (int64_t b = 0; b < w.blocks; ++b, block += kLayout.bytes) {
      if (b % (kSuperblock / kInt8Block) == 0) {
        head = block;
        block += kLayout.head;
      }
      AddBlock<type, kRows>(Scales<type>(head, block, first), Int8Elements<Ints, type>::Whole(block, first),
                            x + b * kInt8Block, x_stride, sums);
    }
    for (int m = 0; m < kRows; ++m) _mm256_storeu_ps(y + m * kInt8GroupRows + first, sums[m]);
  }
}

template <WeightType type, int kRows>
void GroupOfAny(int64_t rows, const Int8View& w, const uint8_t* group, const float* x, int64_t x_stride, float* y) {
  if (rows == kRows) return Group<type, kRows>(w, group, x, x_stride, y);
  if constexpr (kRows > 1) GroupOfAny<type, kRows - 1>(rows, w, group, x, x_stride, y);
}

// As ToBFloat16 (kernels/base/dtype.h), which this file must not instantiate.
uint16_t ToBf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Of row m of x: y[0..16) to the columns of rows [begin, end) of the group, where row 0 would go to column n0.
void StoreRows(const MatvecArgs& args, int64_t m, int64_t n0, int64_t begin, int64_t end, const float* y) {
  for (int64_t n = begin; n < end; ++n) {
    const int64_t at = m * args.out_stride + n0 + n;
    if (args.out_dtype == DType::kBF16) {
      static_cast<uint16_t*>(args.out)[at] = ToBf16(y[n]);
    } else {
      float* const out = static_cast<float*>(args.out) + at;
      *out = args.accumulate ? *out + y[n] : y[n];
    }
  }
}

template <WeightType type>
void Run(const Int8View& w, const MatvecArgs& args, int64_t begin, int64_t end) {
  const size_t group_bytes = Int8BlockAt(Int8LayoutOf(type), w.blocks);
  for (int64_t g = begin; g < end; ++g) {
    const uint8_t* const group = reinterpret_cast<const uint8_t*>(w.groups) + g * group_bytes;
    const int64_t row0 = g * kInt8GroupRows, rows = w.rows < args.end_row ? w.rows : args.end_row;
    const int64_t first = args.begin_row > row0 ? args.begin_row - row0 : 0;
    const int64_t last = rows - row0 < kInt8GroupRows ? rows - row0 : kInt8GroupRows;
    for (int64_t m0 = 0; m0 < args.m; m0 += kMostRows) {
      const int64_t m = args.m - m0 < kMostRows ? args.m - m0 : kMostRows;
      alignas(32) float y[kMostRows * kInt8GroupRows];
      GroupOfAny<type, kMostRows>(m, w, group, args.x + m0 * args.x_stride, args.x_stride, y);
      for (int64_t i = 0; i < m; ++i) {
        StoreRows(args, m0 + i, row0 - args.begin_row, first, last, y + i * kInt8GroupRows);
      }
    }
  }
}

}  // namespace

void SuperblockMatvec(const Int8View& w, const MatvecArgs& args, int64_t begin, int64_t end) {
  VisitSuperblock(w.type, [&]<WeightType type>() { Run<type>(w, args, begin, end); });
}

}  // namespace runahead
