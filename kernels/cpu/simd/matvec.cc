// Batch-invariant products with weights as stored. An element's sum runs over the columns in one order (16 lanes, then
// AddLanes), so it depends on the number of columns only; tiles merely choose which elements share loads.
#include "kernels/cpu/simd/codec.h"
#include "kernels/cpu/simd/functions.h"

namespace runahead::RUNAHEAD_ISA {
namespace {

// Scales are made f32 this many blocks at a time, on the stack.
constexpr int64_t kChunkBlocks = 64;

#if defined(__AVX512F__)
constexpr int kMaxTileM = 8;
constexpr int TileN(int m) {
  return m <= 4 ? 4 : 2;
}  // at most 16 sums in 32 registers
#else
constexpr int kMaxTileM = 4;
constexpr int TileN(int m) {
  return m == 1 ? 4 : m == 2 ? 2 : 1;
}  // at most 4 sums, two registers each, of 16
#endif

struct Tile {
  const uint8_t* scales;    // of the first row
  const uint8_t* elements;  // of the first row
  int64_t blocks;
  size_t prefetch;  // bytes to the same place of the next group
};

// sums[m][n] of N rows of weights and M rows of x.
template <typename C, int M, int N>
inline void Sums(const Tile& tile, const float* x, int64_t x_stride, Vec (&sums)[M][N]) {
  float scales[N][kChunkBlocks * 2 + kLanes];
  Vec acc[M][N];
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) acc[m][n] = Zero();
  }
  for (int64_t begin = 0; begin < tile.blocks; begin += kChunkBlocks) {
    const int64_t end = begin + kChunkBlocks < tile.blocks ? begin + kChunkBlocks : tile.blocks;
    if constexpr (C::kScales > 0) {
      const uint16_t* from = reinterpret_cast<const uint16_t*>(tile.scales) + begin * C::kScales;
      for (int n = 0; n < N; ++n) {
        LoadScales(from + n * tile.blocks * C::kScales, (end - begin) * C::kScales, scales[n]);
      }
    }
    for (int64_t b = begin; b < end; ++b) {
      const float* xb = x + b * kBlockCols;
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const uint8_t* q = tile.elements + (n * tile.blocks + b) * C::kBytes;
        _mm_prefetch(reinterpret_cast<const char*>(q + tile.prefetch), _MM_HINT_T0);
        const Block w = C::Decode(q, &scales[n][(b - begin) * C::kScales]);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          acc[m][n] = Fma(w.lo, Load(xb + m * x_stride), acc[m][n]);
          acc[m][n] = Fma(w.hi, Load(xb + m * x_stride + kLanes), acc[m][n]);
        }
      }
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) sums[m][n] = acc[m][n];
  }
}

inline void StoreSum(const MatvecArgs& args, int64_t m, int64_t n, float sum) {
  if (args.out_dtype == DType::kBF16) {
    StorePartialBF16(static_cast<uint16_t*>(args.out) + m * args.out_stride + n, Set1(sum), 1);
    return;
  }
  float* out = static_cast<float*>(args.out) + m * args.out_stride + n;
  *out = args.accumulate ? *out + sum : sum;
}

// M rows of x from row `m0` against one group; `n0` is the group's first column of out, `valid` its number of rows.
template <typename C, int M>
inline void Group(const StoredView& w, const std::byte* group, const MatvecArgs& args, int64_t m0, int64_t n0,
                  int64_t valid) {
  constexpr int N = TileN(M);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(group);
  for (int first = 0; first < valid; first += N) {
    const Tile tile = {bytes + first * w.blocks * C::kScales * 2, bytes + w.scale_bytes + first * w.blocks * C::kBytes,
                       w.blocks, w.group_bytes};
    Vec sums[M][N];
    Sums<C, M, N>(tile, args.x + m0 * args.x_stride, args.x_stride, sums);
    for (int m = 0; m < M; ++m) {
      float out[4];
      if constexpr (N == 4) {
        _mm_storeu_ps(out, AddLanes4(sums[m][0], sums[m][1], sums[m][2], sums[m][3]));
      } else {
        for (int n = 0; n < N; ++n) out[n] = AddLanes(sums[m][n]);
      }
      for (int n = 0; n < N && first + n < valid; ++n) StoreSum(args, m0 + m, n0 + first + n, out[n]);
    }
  }
}

template <typename C, int M>
inline void GroupOfAny(int m, const StoredView& w, const std::byte* group, const MatvecArgs& args, int64_t m0,
                       int64_t n0, int64_t valid) {
  if (m == M) return Group<C, M>(w, group, args, m0, n0, valid);
  if constexpr (M > 1) GroupOfAny<C, M - 1>(m, w, group, args, m0, n0, valid);
}

template <typename C>
void Run(const StoredView& w, const MatvecArgs& args, int64_t begin, int64_t end) {
  for (int64_t g = begin; g < end; ++g) {
    const std::byte* group = w.groups + g * w.group_bytes;
    const int64_t n0 = g * kGroupRows;
    const int64_t valid = w.rows - n0 < kGroupRows ? w.rows - n0 : kGroupRows;
    for (int64_t m0 = 0; m0 < args.m; m0 += kMaxTileM) {
      const int64_t m = args.m - m0 < kMaxTileM ? args.m - m0 : kMaxTileM;
      GroupOfAny<C, kMaxTileM>(static_cast<int>(m), w, group, args, m0, n0, valid);
    }
  }
}

}  // namespace

void Matvec(const StoredView& w, const MatvecArgs& args, int64_t begin, int64_t end) {
  VisitType(w.type, [&]<WeightType type>() { Run<Codec<type>>(w, args, begin, end); });
}

}  // namespace runahead::RUNAHEAD_ISA
