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

// sums[m * N + n] of N rows of weights and M rows of x.
template <typename C, int M, int N>
inline void Sums(const Tile& tile, const float* x, int64_t x_stride, float (&sums)[M * N]) {
  float scales[N][kChunkBlocks * 2 + kLanes];
  Vec acc[M * N];
  for (Vec& sum : acc) sum = Zero();
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
      Block w[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const uint8_t* q = tile.elements + (n * tile.blocks + b) * C::kBytes;
        _mm_prefetch(reinterpret_cast<const char*>(q + tile.prefetch), _MM_HINT_T0);
        w[n] = C::Decode(q, &scales[n][(b - begin) * C::kScales]);
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const Vec lo = Load(xb + m * x_stride), hi = Load(xb + m * x_stride + kLanes);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) acc[m * N + n] = Fma(w[n].hi, hi, Fma(w[n].lo, lo, acc[m * N + n]));
      }
    }
  }
  AddLanesOf(acc, sums);
}

// Those of N sums in [begin, end) to columns of one row, where sum 0 goes to column n. By N, which the compiler knows:
// a loop to a number that it does not know becomes a call for each few floats.
template <int N>
inline void StoreSums(const MatvecArgs& args, int64_t m, int64_t n, const float* sums, int64_t begin, int64_t end) {
  const int64_t at = m * args.out_stride + n;
  for (int i = 0; i < N; ++i) {
    if (i < begin || i >= end) continue;
    if (args.out_dtype == DType::kBF16) {
      StorePartialBF16(static_cast<uint16_t*>(args.out) + at + i, Set1(sums[i]), 1);
    } else {
      float* const out = static_cast<float*>(args.out) + at + i;
      *out = args.accumulate ? *out + sums[i] : sums[i];
    }
  }
}

// M rows of x from row `m0` against rows [begin, end) of one group; `n0` is the column of out of its row 0.
template <typename C, int M>
inline void Group(const StoredView& w, const std::byte* group, const MatvecArgs& args, int64_t m0, int64_t n0,
                  int64_t begin, int64_t end) {
  constexpr int N = TileN(M);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(group);
  for (int64_t first = begin / N * N; first < end; first += N) {
    const Tile tile = {bytes + first * w.blocks * C::kScales * 2, bytes + w.scale_bytes + first * w.blocks * C::kBytes,
                       w.blocks, w.group_bytes};
    float sums[M * N];
    Sums<C, M, N>(tile, args.x + m0 * args.x_stride, args.x_stride, sums);
    for (int m = 0; m < M; ++m) StoreSums<N>(args, m0 + m, n0 + first, sums + m * N, begin - first, end - first);
  }
}

template <typename C, int M>
inline void GroupOfAny(int m, const StoredView& w, const std::byte* group, const MatvecArgs& args, int64_t m0,
                       int64_t n0, int64_t begin, int64_t end) {
  if (m == M) return Group<C, M>(w, group, args, m0, n0, begin, end);
  if constexpr (M > 1) GroupOfAny<C, M - 1>(m, w, group, args, m0, n0, begin, end);
}

template <typename C>
void Run(const StoredView& w, const MatvecArgs& args, int64_t begin, int64_t end) {
  for (int64_t g = begin; g < end; ++g) {
    const std::byte* group = w.groups + g * w.group_bytes;
    const int64_t n0 = g * kGroupRows;
    const int64_t rows = w.rows < args.end_row ? w.rows : args.end_row;
    const int64_t last = rows - n0 < kGroupRows ? rows - n0 : kGroupRows;
    const int64_t first = args.begin_row > n0 ? args.begin_row - n0 : 0;
    for (int64_t m0 = 0; m0 < args.m; m0 += kMaxTileM) {
      const int64_t m = args.m - m0 < kMaxTileM ? args.m - m0 : kMaxTileM;
      GroupOfAny<C, kMaxTileM>(static_cast<int>(m), w, group, args, m0, n0 - args.begin_row, first, last);
    }
  }
}

}  // namespace

void Matvec(const StoredView& w, const MatvecArgs& args, int64_t begin, int64_t end) {
  VisitType(w.type, [&]<WeightType type>() { Run<Codec<type>>(w, args, begin, end); });
}

}  // namespace runahead::RUNAHEAD_ISA
