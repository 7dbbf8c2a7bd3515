// Flash attention of a block of queries with AVX512_BF16: the strips of attention_prefill_f32.h, multiplied in pairs of
// bf16. `Vec` is the vector type of attention_vec512_bf16.h, or a stand-in of tests. A lane of 32 bits is a pair along
// the summed axis, so a key block is packed as
//   K: [head_dim/2][kKeys], lane (K[n][2r], K[n][2r+1])
//   V: [kKeys/2][padded head_dim], lane (V[2r][n], V[2r+1][n])
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/attention_prefill_f32.h"
#include "kernels/cpu/attention_softmax_bf16.h"

namespace runahead {

template <class Vec>
struct PrefillBf16 {
  using V = Vec;
  using T = typename V::T;
  using Row = typename V::Row;
  using Pairs = typename V::Pairs;
  struct VecOfPairs : V {
    static inline __attribute__((always_inline)) T Fma(T a, T b, T c) { return V::FmaPairs(a, b, c); }
  };
  using Strips = PrefillF32<V>;
  using PairStrips = PrefillF32<VecOfPairs>;
  static constexpr int kKeys = Strips::kKeys;
  static constexpr int kRows = Strips::kRows;
  static constexpr int kMaxQueries = Strips::kMaxQueries;

  using Softmax = SoftmaxBf16<V, kRows, kKeys>;

  static size_t PackedBytes(int head_dim) { return Strips::PackedBytes(head_dim) / 2; }
  // Scores, outputs, queries, and for each strip sixteen maxima and sums.
  static size_t ScratchBytes(int head_dim) {
    return sizeof(float) *
           (kRows * kKeys + kMaxQueries * (Strips::Padded(head_dim) + head_dim / 2) + 2 * kMaxQueries / kRows * 16);
  }

  // Sixteen pairs of each of sixteen keys at a time. Rows lie apart, so the machine foresees none: V of these keys and K
  // of the next are fetched meanwhile.
  template <class E>
  static void PackK(const PackBlock& block, uint32_t* out) {
    const int dim = block.head_dim;
    for (int key = 0; key < kKeys; key += 16) {
      for (int d = 0; d < dim; d += 32) {
        Pairs rows[16];
        for (int i = 0; i < 16; ++i) {
          const std::byte* const row = block.k_rows[key + i];
          const std::byte* const next = key + 16 < kKeys ? block.k_rows[key + 16 + i] : nullptr;
          if (row != nullptr) __builtin_prefetch(row + block.v_offset + d * sizeof(E));
          if (next != nullptr) __builtin_prefetch(next + d * sizeof(E));
          rows[i] = row == nullptr ? V::ZeroPairs() : V::LoadPairs(reinterpret_cast<const E*>(row) + d, dim - d);
        }
        alignas(64) uint32_t columns[16][16];
        V::TransposePairs(rows, reinterpret_cast<std::byte*>(columns));
        for (int j = 0; j < 16 && d + 2 * j < dim; ++j) {
          __builtin_memcpy(out + (d / 2 + j) * kKeys + key, columns[j], sizeof(columns[j]));
        }
      }
    }
  }

  template <class E>
  static Row LoadV(const std::byte* row, int64_t offset, int d, int left) {
    return row == nullptr ? V::ZeroRow() : V::LoadRow(reinterpret_cast<const E*>(row + offset) + d, left);
  }

  template <class E>
  static int PackAs(const PackBlock& block) {
    const int dim = block.head_dim, padded = Strips::Padded(dim);
    uint32_t* const k_out = reinterpret_cast<uint32_t*>(block.packed);
    uint32_t* const v_out = k_out + static_cast<size_t>(kKeys) * dim / 2;
    PackK<E>(block, k_out);
    int first_bad = kKeys;
    for (int key = 0; key < kKeys; key += 2) {
      bool bad[2] = {false, false};
      for (int d = 0; d < dim; d += 16) {
        const Row even = V::FiniteRow(LoadV<E>(block.k_rows[key], block.v_offset, d, dim - d), &bad[0]);
        const Row odd = V::FiniteRow(LoadV<E>(block.k_rows[key + 1], block.v_offset, d, dim - d), &bad[1]);
        V::StorePairs(v_out + static_cast<size_t>(key) / 2 * padded + d, V::Interleave(even, odd));
      }
      if (first_bad == kKeys && (bad[0] || bad[1])) first_bad = bad[0] ? key : key + 1;
    }
    return first_bad;
  }
  static int Pack(const PackBlock& block) {
    return block.dtype == DType::kF16 ? PackAs<Float16>(block) : PackAs<BFloat16>(block);
  }

  // q [rows][head_dim] in bf16, zero in the rows past the last query.
  template <class E>
  static void LoadQueries(const AttendBlock& block, int rows, std::byte* q) {
    const size_t bytes = static_cast<size_t>(block.head_dim) * 2;
    for (int i = 0; i < rows; ++i) {
      const E* const from = reinterpret_cast<const E*>(block.q + i * block.q_stride);
      for (int d = 0; d < block.head_dim; d += 32) {
        const int left = block.head_dim - d;
        alignas(64) std::byte pairs[64];
        V::StorePairs(pairs, i < block.queries ? V::LoadPairs(from + d, left) : V::ZeroPairs());
        __builtin_memcpy(q + i * bytes + 2 * d, pairs, left < 32 ? 2 * left : 64);
      }
    }
  }

  static void Attend(const AttendBlock& block) {
    const int dim = block.head_dim, padded = Strips::Padded(dim);
    const int rows = (block.queries + kRows - 1) / kRows * kRows;
    float* const scores = reinterpret_cast<float*>(block.scratch);
    float* const acc = scores + kRows * kKeys;
    float* const q = acc + static_cast<size_t>(kMaxQueries) * padded;
    float* const max = q + static_cast<size_t>(kMaxQueries) * dim / 2;
    float* const sum = max + kMaxQueries / kRows * 16;
    block.q_bf16 ? LoadQueries<BFloat16>(block, rows, reinterpret_cast<std::byte*>(q))
                 : LoadQueries<float>(block, rows, reinterpret_cast<std::byte*>(q));
    for (int i = 0; i < rows / kRows * 16; i += 16) {
      V::Store(max + i, V::Set1(-Strips::kInfinity));
      V::Store(sum + i, V::Zero());
    }
    for (int i = 0; i < rows * padded; i += V::kLanes) V::Store(acc + i, V::Zero());

    const float unit = block.scale * Strips::kLog2E;
    const int64_t end = block.keys;
    const float* packed = reinterpret_cast<const float*>(block.packed);
    for (int64_t key = block.first_key; key < end; key += kKeys, packed += PackedBytes(dim) / sizeof(float)) {
      for (int i = 0; i < rows; i += kRows) {
        const int64_t last = !block.dense && block.position + i + kRows < end ? block.position + i + kRows : end;
        if (last <= key) continue;  // causality hides this block from the whole strip
        const int64_t hidden = Strips::HiddenKeys(block, i, key);
        if (hidden >= kKeys) continue;  // the window does
        const int keys = static_cast<int>(last - key < kKeys ? last - key : kKeys);
        PairStrips::template Product<V::kStripVecs, false>(q + static_cast<size_t>(i) * dim / 2, dim / 2, packed, kKeys,
                                                      dim / 2, nullptr, scores, kKeys);
        if (hidden + kRows > 1) Strips::template HideKeys<kRows, kKeys>(scores, keys, hidden);
        const int64_t visible = block.position + i + 1 - key;
        float* const strip_max = max + i / kRows * 16;
        float* const strip_sum = sum + i / kRows * 16;
        alignas(64) float alpha[16];
        V::Store(alpha, keys == kKeys && visible >= kKeys
                            ? Softmax::template Rows<true>(scores, keys, 0, unit, strip_max, strip_sum)
                            : Softmax::template Rows<false>(scores, keys, visible, unit, strip_max, strip_sum));
        PairStrips::Accumulate(scores, (keys + 1) / 2, packed + static_cast<size_t>(kKeys) * dim / 2, padded, alpha,
                          acc + static_cast<size_t>(i) * padded);
      }
    }
    for (int i = 0; i < rows; ++i) sum[i] = sum[i / kRows * 16 + i % kRows];
    block.out_bf16 ? Strips::template StoreOut<BFloat16>(block, padded, acc, sum)
                   : Strips::template StoreOut<float>(block, padded, acc, sum);
  }

  static constexpr PrefillKernels kKernels = {kKeys, kRows, kMaxQueries, PackedBytes, ScratchBytes, Pack, Attend};
};

}  // namespace runahead
