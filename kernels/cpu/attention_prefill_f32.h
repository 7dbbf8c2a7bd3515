// Flash attention of a block of queries in f32 arithmetic, for any vector type of attention_vec*.h.
// A key block is packed as K^T [head_dim][kKeys] and V [kKeys][padded head_dim], both f32: scores and output are then
// the same small matrix product, A (rows of six) times B (rows of vectors), with B in L1 across all strips of a block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/attention_soft_cap.h"

namespace runahead {

template <class V>
struct PrefillF32 {
  using T = typename V::T;
  static constexpr int kKeys = 64;  // K and V of a block with head_dim 64: 32 KiB
  static constexpr int kRows = 6;
  static constexpr int kMaxQueries = 96;
  static constexpr float kInfinity = __builtin_huge_valf();
  static constexpr float kLowest = -3.402823466e38f;
  static constexpr float kLog2E = 1.44269504088896f;

  static int Padded(int head_dim) { return (head_dim + V::kLanes - 1) / V::kLanes * V::kLanes; }
  static size_t PackedBytes(int head_dim) {
    return static_cast<size_t>(kKeys) * (head_dim + Padded(head_dim)) * sizeof(float);
  }
  static size_t ScratchBytes(int head_dim) {
    return sizeof(float) * (kMaxQueries * (head_dim + Padded(head_dim) + 2) + kRows * kKeys);
  }

  template <class E>
  static T LoadPart(const E* p, int left) {
    if constexpr (V::kLanes == 16) {
      if (left < V::kLanes) return V::LoadHalf(p);
    }
    return V::Load(p);
  }
  template <class E>
  static void StorePart(E* p, T x, int left) {
    if constexpr (V::kLanes == 16) {
      if (left < V::kLanes) return V::StoreHalf(p, x);
    }
    V::Store(p, x);
  }

  // As many dimensions of as many keys as a vector has lanes at a time. Rows lie apart, so the machine foresees none: V
  // of these keys and K of the next are fetched meanwhile.
  template <class E>
  static void PackK(const PackBlock& block, float* out) {
    const int dim = block.head_dim;
    for (int key = 0; key < kKeys; key += V::kLanes) {
      for (int d = 0; d < dim; d += V::kLanes) {
        T lanes[V::kLanes];
        for (int i = 0; i < V::kLanes; ++i) {
          const std::byte* const row = block.k_rows[key + i];
          const std::byte* const next = key + V::kLanes < kKeys ? block.k_rows[key + V::kLanes + i] : nullptr;
          if (row != nullptr) __builtin_prefetch(row + block.v_offset + d * sizeof(E));
          if (next != nullptr) __builtin_prefetch(next + d * sizeof(E));
          lanes[i] = row == nullptr ? V::Zero() : LoadPart(reinterpret_cast<const E*>(row) + d, dim - d);
        }
        V::Transpose(lanes);
        const int count = dim - d < V::kLanes ? dim - d : V::kLanes;
        for (int i = 0; i < count; ++i) V::Store(out + (d + i) * kKeys + key, lanes[i]);
      }
    }
  }

  template <class E>
  static int PackAs(const PackBlock& block) {
    const int dim = block.head_dim, padded = Padded(dim);
    float* const kt = reinterpret_cast<float*>(block.packed);
    float* const v_out = kt + static_cast<size_t>(kKeys) * dim;
    PackK<E>(block, kt);
    int first_bad = kKeys;
    for (int key = 0; key < kKeys; ++key) {
      const std::byte* const row = block.k_rows[key];
      float* const v_row = v_out + static_cast<size_t>(key) * padded;
      bool bad = false;
      for (int d = 0; d < dim; d += V::kLanes) {
        if (row == nullptr) {
          V::Store(v_row + d, V::Zero());
        } else {
          V::Store(v_row + d,
                   V::Finite(LoadPart(reinterpret_cast<const E*>(row + block.v_offset) + d, dim - d), &bad));
        }
      }
      if (bad && first_bad == kKeys) first_bad = key;
    }
    return first_bad;
  }
  static int Pack(const PackBlock& block) {
    return block.dtype == DType::kF32    ? PackAs<float>(block)
           : block.dtype == DType::kBF16 ? PackAs<BFloat16>(block)
                                         : PackAs<Float16>(block);
  }

  // c[r][0, kVecs*lanes) = (kScaled ? c * alpha[r] : 0) + sum_k a[r][k] * b[k][...], for kRows rows.
  template <int kVecs, bool kScaled>
  static void Product(const float* a, int64_t lda, const float* b, int64_t ldb, int depth, const float* alpha, float* c,
                      int64_t ldc) {
    T acc[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVecs; ++j) {
        acc[r][j] = kScaled ? V::Mul(V::Load(c + r * ldc + j * V::kLanes), V::Set1(alpha[r])) : V::Zero();
      }
    }
    for (int k = 0; k < depth; ++k) {
      T row[kVecs];
      for (int j = 0; j < kVecs; ++j) row[j] = V::Load(b + k * ldb + j * V::kLanes);
      for (int r = 0; r < kRows; ++r) {
        const T x = V::Set1(a[r * lda + k]);
        for (int j = 0; j < kVecs; ++j) acc[r][j] = V::Fma(x, row[j], acc[r][j]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVecs; ++j) V::Store(c + r * ldc + j * V::kLanes, acc[r][j]);
    }
  }

  // How many keys from `key` on the window hides from query i; from query i + r it hides r more. Below 1: none.
  static int64_t HiddenKeys(const AttendBlock& block, int64_t i, int64_t key) {
    constexpr int64_t kNone = -(int64_t{1} << 30);
    return block.window == 0 ? kNone : block.position + i + 1 - block.window - key;
  }
  // The first hidden + r scores of row r become -inf, as far as there are `keys`.
  template <int kHiddenRows, int kStride>
  static void HideKeys(float* scores, int keys, int64_t hidden) {
    for (int r = 0; r < kHiddenRows; ++r) {
      for (int j = 0; j < keys && j < hidden + r; ++j) scores[r * kStride + j] = -kInfinity;
    }
  }

  // Scores [kRows][kKeys] of a strip become probabilities against the new row maxima; hidden keys become 0.
  // first_visible: how many of the block's keys row 0 sees (row r sees r more); may be negative.
  // max and sum are updated; alpha[r] is what earlier sums and outputs are to be multiplied by.
  static void Softmax(float* scores, int keys, int64_t first_visible, float* max, float* sum, float* alpha) {
    alignas(64) float drop[16] = {};
    for (int r = 0; r < kRows; ++r) {
      float* row = scores + r * kKeys;
      const int64_t seen = first_visible + r;
      const int visible = static_cast<int>(seen < 0 ? 0 : seen < keys ? seen : keys);
      T top = V::Set1(max[r]);
      for (int j = 0; j < keys; j += V::kLanes) {
        T x = V::Load(row + j);
        if (visible < j + V::kLanes) {
          x = V::FillFrom(x, visible - j, -kInfinity);
          V::Store(row + j, x);
        }
        top = V::Max(top, x);
      }
      const float reduced = V::ReduceMax(top);
      const float m = reduced < kLowest ? kLowest : reduced;  // all scores -inf: probabilities 0, not NaN
      T total = V::Zero();
      for (int j = 0; j < keys; j += V::kLanes) {
        const T p = V::Exp2(V::Sub(V::Load(row + j), V::Set1(m)));
        V::Store(row + j, p);
        total = V::Add(total, p);
      }
      drop[r] = max[r] - m;
      max[r] = m;
      alpha[r] = V::ReduceAdd(total);
    }
    alignas(64) float factor[16];
    V::Store(factor, V::Exp2(V::Load(drop)));
    for (int r = 0; r < kRows; ++r) {
      sum[r] = sum[r] * factor[r] + alpha[r];
      alpha[r] = factor[r];
    }
  }

  // out[kRows][padded] = out * alpha + p[kRows][keys] * v[keys][padded]
  static void Accumulate(const float* p, int keys, const float* v, int padded, const float* alpha, float* out) {
    constexpr int kStep = V::kStripVecs * V::kLanes;
    int d = 0;
    for (; d + kStep <= padded; d += kStep) {
      Product<V::kStripVecs, true>(p, kKeys, v + d, padded, keys, alpha, out + d, padded);
    }
    const int left = (padded - d) / V::kLanes;
    if (left == 1) Product<1, true>(p, kKeys, v + d, padded, keys, alpha, out + d, padded);
    if constexpr (V::kStripVecs > 2) {
      if (left == 2) Product<2, true>(p, kKeys, v + d, padded, keys, alpha, out + d, padded);
      if (left == 3) Product<3, true>(p, kKeys, v + d, padded, keys, alpha, out + d, padded);
    }
  }

  // q times scale * log2(e) into [rows][head_dim], zero in the rows past the last query.
  template <class E>
  static void LoadQueries(const AttendBlock& block, int rows, float* q) {
    const T factor = V::Set1(block.scale * kLog2E);
    for (int i = 0; i < rows; ++i) {
      const E* from = reinterpret_cast<const E*>(block.q + i * block.q_stride);
      for (int d = 0; d < block.head_dim; d += V::kLanes) {
        const int left = block.head_dim - d;
        const T x = i < block.queries ? V::Mul(LoadPart(from + d, left), factor) : V::Zero();
        StorePart(q + static_cast<size_t>(i) * block.head_dim + d, x, left);
      }
    }
  }

  template <class E>
  static void StoreOut(const AttendBlock& block, int padded, const float* acc, const float* sum) {
    for (int i = 0; i < block.queries; ++i) {
      E* to = reinterpret_cast<E*>(block.out + i * block.out_stride);
      const T factor = V::Set1(sum[i] == 0.0f ? 0.0f : 1.0f / sum[i]);
      for (int d = 0; d < block.head_dim; d += V::kLanes) {
        StorePart(to + d, V::Mul(V::Load(acc + static_cast<size_t>(i) * padded + d), factor), block.head_dim - d);
      }
    }
  }

  static void Attend(const AttendBlock& block) {
    const int dim = block.head_dim, padded = Padded(dim);
    const int rows = (block.queries + kRows - 1) / kRows * kRows;
    float* const scores = reinterpret_cast<float*>(block.scratch);
    float* const acc = scores + kRows * kKeys;
    float* const q = acc + static_cast<size_t>(kMaxQueries) * padded;
    float* const max = q + static_cast<size_t>(kMaxQueries) * dim;
    float* const sum = max + kMaxQueries;
    block.q_bf16 ? LoadQueries<BFloat16>(block, rows, q) : LoadQueries<float>(block, rows, q);
    for (int i = 0; i < rows; ++i) {
      max[i] = -kInfinity;
      sum[i] = 0.0f;
    }
    for (int i = 0; i < rows * padded; i += V::kLanes) V::Store(acc + i, V::Zero());

    const int64_t end = block.keys;
    const float* packed = reinterpret_cast<const float*>(block.packed);
    const float cap = block.soft_cap * kLog2E;
    for (int64_t key = block.first_key; key < end; key += kKeys, packed += PackedBytes(dim) / sizeof(float)) {
      for (int i = 0; i < rows; i += kRows) {
        const int64_t last = !block.dense && block.position + i + kRows < end ? block.position + i + kRows : end;
        if (last <= key) continue;  // causality hides this block from the whole strip
        const int64_t hidden = HiddenKeys(block, i, key);
        if (hidden >= kKeys) continue;  // the window does
        const int keys = static_cast<int>(last - key < kKeys ? last - key : kKeys);
        constexpr int kStep = V::kStripVecs * V::kLanes;
        for (int j = 0; j < keys; j += kStep) {
          Product<V::kStripVecs, false>(q + static_cast<size_t>(i) * dim, dim, packed + j, kKeys, dim, nullptr,
                                        scores + j, kKeys);
        }
        if (cap > 0.0f) SoftCap<V>(scores, kRows * kKeys, cap);
        if (hidden + kRows > 1) HideKeys<kRows, kKeys>(scores, keys, hidden);
        float alpha[kRows];
        Softmax(scores, keys, block.position + i + 1 - key, max + i, sum + i, alpha);
        Accumulate(scores, keys, packed + static_cast<size_t>(kKeys) * dim, padded, alpha,
                   acc + static_cast<size_t>(i) * padded);
      }
    }
    block.out_bf16 ? StoreOut<BFloat16>(block, padded, acc, sum) : StoreOut<float>(block, padded, acc, sum);
  }

  static constexpr PrefillKernels kKernels = {kKeys, kRows, kMaxQueries, PackedBytes, ScratchBytes, Pack, Attend};
};

}  // namespace runahead
