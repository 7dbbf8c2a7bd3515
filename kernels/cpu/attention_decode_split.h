// One split of a decode step: all q heads of a group against up to 256 positions of their kv head, read once from
// memory. The order of every sum depends on `count` and the shape only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/attention_soft_cap.h"

namespace runahead {

template <class V, class E>
struct DecodeOneSplit {
  using T = typename V::T;
  static constexpr float kInfinity = __builtin_huge_valf();
  static constexpr float kLowest = -3.402823466e38f;
  static constexpr int kPrefetchRows = 16;

  static T LoadPart(const E* p, int left) {
    if constexpr (V::kLanes == 16) {
      if (left < V::kLanes) return V::LoadHalf(p);
    }
    return V::Load(p);
  }

  // Fetches what is read soon, when row k of the split is read at `offset`.
  static inline __attribute__((always_inline)) void Fetch(const DecodeSplit& split, int k, int64_t offset,
                                                          KvAhead& ahead) {
    if (split.cold && k + kPrefetchRows < split.count) {
      const std::byte* const row = split.rows[k + kPrefetchRows] + offset;
      for (int i = 0; i < split.head_dim * static_cast<int>(sizeof(E)); i += 64) __builtin_prefetch(row + i);
    }
    for (int i = 0; i < ahead.step; ++i) {
      __builtin_prefetch(*ahead.rows + 64 * ahead.line);
      if (++ahead.line < ahead.row_lines) continue;
      ahead.line = 0;
      ++ahead.rows;
      if (ahead.rows == ahead.end) ahead.step = 0;
    }
  }

  // scores[h][k] for kHeads heads and all positions. As many positions at a time as fill one vector of sums.
  template <int kHeads>
  static void Scores(const DecodeSplit& split, const float* q, float* scores, bool fetch) {
    constexpr int kWidth = kHeads == 3 ? 4 : kHeads;
    constexpr int kKeys = V::kLanes / kWidth;
    KvAhead ahead = *split.ahead;
    for (int k = 0; k < split.count; k += kKeys) {
      const E* rows[kKeys];
      for (int j = 0; j < kKeys; ++j) {  // past the end: the last row again, its score is not used
        const int at = k + j < split.count ? k + j : split.count - 1;
        rows[j] = reinterpret_cast<const E*>(split.rows[at] + split.k_offset);
        if (fetch) Fetch(split, k + j, split.k_offset, ahead);
      }
      T acc[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) acc[i] = V::Zero();
      for (int d = 0; d < split.head_dim; d += V::kLanes) {
        T query[kHeads];
        for (int h = 0; h < kHeads; ++h) query[h] = V::Load(q + h * split.padded_dim + d);
        for (int j = 0; j < kKeys; ++j) {
          const T x = LoadPart(rows[j] + d, split.head_dim - d);
          for (int h = 0; h < kHeads; ++h) acc[h * kKeys + j] = V::Fma(query[h], x, acc[h * kKeys + j]);
        }
      }
      alignas(64) float sums[V::kLanes];
      V::Store(sums, V::template ReduceRows<false>(acc));
      for (int h = 0; h < kHeads; ++h) {
        for (int j = 0; j < kKeys; ++j) scores[h * kDecodeSplit + k + j] = sums[h * kKeys + j];
      }
    }
    *split.ahead = ahead;
  }

  static void Softmax(const DecodeSplit& split, int h) {
    float* row = split.scores + h * kDecodeSplit;
    T top = V::Set1(-kInfinity);
    for (int k = 0; k < split.count; k += V::kLanes) {
      T x = V::Load(row + k);
      if (split.count < k + V::kLanes) {
        x = V::FillFrom(x, split.count - k, -kInfinity);
        V::Store(row + k, x);
      }
      top = V::Max(top, x);
    }
    const float reduced = V::ReduceMax(top);
    const float m = reduced < kLowest ? kLowest : reduced;  // all scores -inf: probabilities 0, not NaN
    T total = V::Zero();
    for (int k = 0; k < split.count; k += V::kLanes) {
      const T p = V::Exp2(V::Sub(V::Load(row + k), V::Set1(m)));
      V::Store(row + k, p);
      total = V::Add(total, p);
    }
    split.max[h] = m;
    split.sum[h] = V::ReduceAdd(total);
  }

  // acc[h][d, d + kVecs*lanes) = sum_k p[h][k] * V[k][...] for kHeads heads.
  template <int kHeads, int kVecs>
  static void Mix(const DecodeSplit& split, const float* p, int d, float* out, bool fetch) {
    T acc[kHeads][kVecs];
    for (int h = 0; h < kHeads; ++h) {
      for (int j = 0; j < kVecs; ++j) acc[h][j] = V::Zero();
    }
    KvAhead ahead = *split.ahead;
    for (int k = 0; k < split.count; ++k) {
      const E* row = reinterpret_cast<const E*>(split.rows[k] + split.v_offset) + d;
      if (fetch) Fetch(split, k, split.v_offset, ahead);
      T x[kVecs];
      for (int j = 0; j < kVecs; ++j) x[j] = LoadPart(row + j * V::kLanes, split.head_dim - d - j * V::kLanes);
      for (int h = 0; h < kHeads; ++h) {
        const T weight = V::Set1(p[h * kDecodeSplit + k]);
        for (int j = 0; j < kVecs; ++j) acc[h][j] = V::Fma(weight, x[j], acc[h][j]);
      }
    }
    *split.ahead = ahead;
    for (int h = 0; h < kHeads; ++h) {
      for (int j = 0; j < kVecs; ++j) V::Store(out + h * split.padded_dim + d + j * V::kLanes, acc[h][j]);
    }
  }

  template <int kHeads>
  static void MixAll(const DecodeSplit& split, const float* p, float* out, bool fetch) {
    constexpr int kVecs = V::kLanes == 16 ? 4 : 2;
    int d = 0;
    for (; d + kVecs * V::kLanes <= split.padded_dim; d += kVecs * V::kLanes) {
      Mix<kHeads, kVecs>(split, p, d, out, fetch && d == 0);
    }
    for (; d < split.padded_dim; d += V::kLanes) Mix<kHeads, 1>(split, p, d, out, fetch && d == 0);
  }

  template <int kHeads>
  static void ScoreHeads(const DecodeSplit& split, int h) {
    Scores<kHeads>(split, split.q + h * split.padded_dim, split.scores + h * kDecodeSplit, h == 0);
  }
  template <int kHeads>
  static void MixHeads(const DecodeSplit& split, int h) {
    MixAll<kHeads>(split, split.scores + h * kDecodeSplit, split.acc + h * split.padded_dim, h == 0);
  }

  static void Run(const DecodeSplit& split) {
    constexpr int kMost = V::kLanes == 16 ? 4 : 2;  // heads at a time, by the number of registers
    int h = 0;
    for (; h + kMost <= split.group; h += kMost) ScoreHeads<kMost>(split, h);
    if (split.group - h == 3) ScoreHeads<3>(split, h);
    if (split.group - h == 2) ScoreHeads<2>(split, h);
    if (split.group - h == 1) ScoreHeads<1>(split, h);
    if (split.soft_cap > 0.0f) {
      for (h = 0; h < split.group; ++h) SoftCap<V>(split.scores + h * kDecodeSplit, split.count, split.soft_cap);
    }
    for (h = 0; h < split.group; ++h) Softmax(split, h);
    for (h = 0; h + kMost <= split.group; h += kMost) MixHeads<kMost>(split, h);
    if (split.group - h == 3) MixHeads<3>(split, h);
    if (split.group - h == 2) MixHeads<2>(split, h);
    if (split.group - h == 1) MixHeads<1>(split, h);
  }
};

template <class V>
inline constexpr DecodeKernels kDecodeKernels = {V::kLanes, DecodeOneSplit<V, float>::Run,
                                                 DecodeOneSplit<V, BFloat16>::Run, DecodeOneSplit<V, Float16>::Run};

}  // namespace runahead
