// Flash attention of a block of queries in bf16 tiles, scores and sums in f32. `Vec` is the vector type of
// attention_vec512_bf16.h, `Tiles` the machine's tile unit; tests have stand-ins for both.
//
// A key block is packed as tiles of 1 KiB, ready to be right-hand operands (16 rows of 16 pairs along the summed axis):
//   K: [kKeys/16][dim/32], tile row r, column n = (K[n][2r], K[n][2r+1])
//   V: [dim/16][kKeys/32], tile row r, column n = (V[2r][n], V[2r+1][n])
// A strip of 32 queries takes a block in three steps: scores = Q K^T (2x2 tiles of f32, to memory), softmax in vectors
// (probabilities in bf16 over the scores they come from), out += P V (2x2 tiles of f32, from and to memory).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/attention_prefill_f32.h"
#include "kernels/cpu/attention_softmax_bf16.h"

namespace runahead {

template <class Vec, class Tiles>
struct PrefillAmx {
  using V = Vec;
  using T = typename V::T;
  using Row = typename V::Row;
  using Pairs = typename V::Pairs;
  static constexpr int kKeys = 128;
  using Softmax = SoftmaxBf16<V, 16, kKeys>;
  static constexpr int kRows = 32;
  static constexpr int kMaxQueries = 128;
  static constexpr TileConfig kTiles = {};
  static constexpr int kTileBytes = 1024;
  static constexpr int kScoreStride = kKeys * sizeof(float);  // bytes; probabilities use the front half of their row
  static constexpr float kInfinity = __builtin_huge_valf();
  static constexpr float kLog2E = 1.44269504088896f;

  static int Padded(int head_dim) { return (head_dim + 31) / 32 * 32; }
  static size_t PackedBytes(int head_dim) { return size_t{2} * kKeys * Padded(head_dim) * sizeof(uint16_t); }
  static size_t ScratchBytes(int head_dim) {
    return kRows * kScoreStride + size_t{kMaxQueries} * (Padded(head_dim) * (sizeof(float) + sizeof(uint16_t))) +
           2 * kMaxQueries * sizeof(float);
  }

  template <class E>
  static void PackK(const PackBlock& block) {
    std::byte* out = block.packed;
    for (int key = 0; key < kKeys; key += 16) {
      for (int d = 0; d < Padded(block.head_dim); d += 32, out += kTileBytes) {
        Pairs rows[16];
        for (int i = 0; i < 16; ++i) {
          const std::byte* row = block.k_rows[key + i];
          rows[i] =
              row == nullptr ? V::ZeroPairs() : V::LoadPairs(reinterpret_cast<const E*>(row) + d, block.head_dim - d);
        }
        V::TransposePairs(rows, out);
      }
    }
  }

  template <class E>
  static Row LoadV(const PackBlock& block, int key, int d, int* first_bad) {
    const std::byte* row = block.k_rows[key];
    if (row == nullptr || d >= block.head_dim) return V::ZeroRow();
    bool bad = false;
    const Row x =
        V::FiniteRow(V::LoadRow(reinterpret_cast<const E*>(row + block.v_offset) + d, block.head_dim - d), &bad);
    if (bad && key < *first_bad) *first_bad = key;
    return x;
  }

  template <class E>
  static int PackAs(const PackBlock& block) {
    PackK<E>(block);
    int first_bad = kKeys;
    std::byte* out = block.packed + PackedBytes(block.head_dim) / 2;
    for (int d = 0; d < Padded(block.head_dim); d += 16) {
      for (int key = 0; key < kKeys; key += 2, out += 64) {
        const Row even = LoadV<E>(block, key, d, &first_bad);
        const Row odd = LoadV<E>(block, key + 1, d, &first_bad);
        V::StorePairs(out, V::Interleave(even, odd));
      }
    }
    return first_bad;
  }
  static int Pack(const PackBlock& block) {
    return block.dtype == DType::kF16 ? PackAs<Float16>(block) : PackAs<BFloat16>(block);
  }

  // Tiles 0..3 += rows of `a` (two tiles below each other) times two columns of tiles of `b`, over `depth` tiles.
  static void MultiplyTiles(const std::byte* a, int64_t a_stride, const std::byte* b, int64_t b_column, int depth) {
    for (int k = 0; k < depth; ++k) {
      Tiles::template Load<4>(a + 64 * k, a_stride);
      Tiles::template Load<6>(b + kTileBytes * k, 64);
      Tiles::template Load<7>(b + b_column + kTileBytes * k, 64);
      Tiles::template Load<5>(a + 16 * a_stride + 64 * k, a_stride);
      Tiles::template DotBf16<0, 4, 6>();
      Tiles::template DotBf16<1, 4, 7>();
      Tiles::template DotBf16<2, 5, 6>();
      Tiles::template DotBf16<3, 5, 7>();
    }
  }
  static void StoreTiles(std::byte* out, int64_t stride) {
    Tiles::template Store<0>(out, stride);
    Tiles::template Store<1>(out + 64, stride);
    Tiles::template Store<2>(out + 16 * stride, stride);
    Tiles::template Store<3>(out + 16 * stride + 64, stride);
  }

  // scores[32][steps * 32] = q K^T
  static void Scores(const std::byte* q, int padded, const std::byte* k, int steps, std::byte* scores) {
    const int64_t column = int64_t{padded} / 32 * kTileBytes;
    for (int n = 0; n < steps; ++n) {
      Tiles::template Zero<0>();
      Tiles::template Zero<1>();
      Tiles::template Zero<2>();
      Tiles::template Zero<3>();
      MultiplyTiles(q, padded * 2, k + 2 * n * column, column, padded / 32);
      StoreTiles(scores + 128 * n, kScoreStride);
    }
  }

  // out[32][padded] += p[32][steps * 32] V
  static void Accumulate(const std::byte* p, const std::byte* v, int steps, int padded, std::byte* out) {
    const int64_t column = kKeys / 32 * kTileBytes;
    const int64_t stride = padded * 4;
    for (int n = 0; n < padded / 32; ++n) {
      std::byte* to = out + 128 * n;
      Tiles::template Load<0>(to, stride);
      Tiles::template Load<1>(to + 64, stride);
      Tiles::template Load<2>(to + 16 * stride, stride);
      Tiles::template Load<3>(to + 16 * stride + 64, stride);
      MultiplyTiles(p, kScoreStride, v + 2 * n * column, column, steps);
      StoreTiles(to, stride);
    }
  }

  // Multiplies row r of out[16][padded] by alpha[r], where it is not 1.
  static void Rescale(T alpha, int padded, float* out) {
    uint32_t rows = V::Differ(alpha, V::Set1(1.0f));
    if (rows == 0) return;
    alignas(64) float factors[16];
    V::Store(factors, alpha);
    for (; rows != 0; rows &= rows - 1) {
      const int r = __builtin_ctz(rows);
      const T factor = V::Set1(factors[r]);
      for (int d = 0; d < padded; d += 16)
        V::Store(out + r * padded + d, V::Mul(V::Load(out + r * padded + d), factor));
    }
  }

  template <class E>
  static void LoadQueries(const AttendBlock& block, int rows, int padded, std::byte* q) {
    for (int i = 0; i < rows; ++i) {
      for (int d = 0; d < padded; d += 32) {
        const Pairs x =
            i < block.queries && d < block.head_dim
                ? V::LoadPairs(reinterpret_cast<const E*>(block.q + i * block.q_stride) + d, block.head_dim - d)
                : V::ZeroPairs();
        V::StorePairs(q + (static_cast<size_t>(i) * padded + d) * 2, x);
      }
    }
  }

  static void Attend(const AttendBlock& block) {
    const int padded = Padded(block.head_dim);
    const int rows = (block.queries + kRows - 1) / kRows * kRows;
    std::byte* const scores = block.scratch;
    float* const acc = reinterpret_cast<float*>(scores + kRows * kScoreStride);
    std::byte* const q = reinterpret_cast<std::byte*>(acc + static_cast<size_t>(kMaxQueries) * padded);
    float* const max = reinterpret_cast<float*>(q + static_cast<size_t>(kMaxQueries) * padded * 2);
    float* const sum = max + kMaxQueries;
    block.q_bf16 ? LoadQueries<BFloat16>(block, rows, padded, q) : LoadQueries<float>(block, rows, padded, q);
    for (int i = 0; i < rows; i += 16) {
      V::Store(max + i, V::Set1(-kInfinity));
      V::Store(sum + i, V::Zero());
    }
    for (int i = 0; i < rows * padded; i += 16) V::Store(acc + i, V::Zero());

    Tiles::Configure(kTiles);
    const float unit = block.scale * kLog2E;
    const int64_t end = block.keys;
    const std::byte* packed = block.packed;
    for (int64_t key = block.first_key; key < end; key += kKeys, packed += PackedBytes(block.head_dim)) {
      for (int i = 0; i < rows; i += kRows) {
        const int64_t last = !block.dense && block.position + i + kRows < end ? block.position + i + kRows : end;
        if (last <= key) continue;  // causality hides this block from the whole strip
        const int64_t hidden = PrefillF32<V>::HiddenKeys(block, i, key);
        if (hidden >= kKeys) continue;  // the window does
        const int keys = static_cast<int>(last - key < kKeys ? last - key : kKeys);
        const int steps = (keys + 31) / 32;
        Scores(q + static_cast<size_t>(i) * padded * 2, padded, packed, steps, scores);
        if (hidden + kRows > 1)
          PrefillF32<V>::template HideKeys<kRows, kKeys>(reinterpret_cast<float*>(scores), keys, hidden);
        const int64_t visible = block.position + i + 1 - key;
        for (int half = 0; half < kRows; half += 16) {
          float* const rows_scores = reinterpret_cast<float*>(scores) + half * kKeys;
          const T alpha = visible >= kKeys
                              ? Softmax::template Rows<true>(rows_scores, keys, 0, unit, max + i + half, sum + i + half)
                              : Softmax::template Rows<false>(rows_scores, keys, visible + half, unit, max + i + half,
                                                              sum + i + half);
          Rescale(alpha, padded, acc + static_cast<size_t>(i + half) * padded);
        }
        Accumulate(scores, packed + PackedBytes(block.head_dim) / 2, steps, padded,
                   reinterpret_cast<std::byte*>(acc + static_cast<size_t>(i) * padded));
      }
    }
    Tiles::Release();
    block.out_bf16 ? PrefillF32<V>::template StoreOut<BFloat16>(block, padded, acc, sum)
                   : PrefillF32<V>::template StoreOut<float>(block, padded, acc, sum);
  }

  static constexpr PrefillKernels kKernels = {kKeys, kRows, kMaxQueries, PackedBytes, ScratchBytes, Pack, Attend};
};

}  // namespace runahead
