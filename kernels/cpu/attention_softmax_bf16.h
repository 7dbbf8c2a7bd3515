// The softmax of a strip of scores whose probabilities are multiplied in bf16, for any vector type that has what
// attention_vec512_bf16.h asks for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace runahead {

// Strips of kRows queries, at most sixteen, and rows of kKeys scores.
template <class V, int kRows, int kKeys>
struct SoftmaxBf16 {
  using T = typename V::T;
  static constexpr float kInfinity = __builtin_huge_valf();
  static constexpr float kLowest = -3.402823466e38f;

  // Scores become probabilities in bf16, in the front half of their row. Row r sees the first first_visible + r of
  // `keys` keys (kWhole: all of kKeys); what it does not see becomes 0, up to a multiple of 32 keys. Updates max and
  // sum, [16] of which those past kRows mean nothing: they are in units of scores and of 2^(score * unit). Returns what
  // earlier sums and outputs are to be scaled by.
  template <bool kWhole>
  static T Rows(float* scores, int keys, int64_t first_visible, float unit, float* max, float* sum) {
    const int columns = kWhole ? kKeys : (keys + 31) / 32 * 32;
    const auto load = [&](int r, int j) __attribute__((always_inline)) {
      const T x = V::Load(scores + r * kKeys + j);
      if (kWhole) return x;
      const int64_t seen = first_visible + r < keys ? first_visible + r : keys;
      return V::FillFrom(x, static_cast<int>(seen < 0 ? 0 : seen) - j, -kInfinity);
    };
    T rows[16];
    for (int r = kRows; r < 16; ++r) rows[r] = V::Zero();
    for (int r = 0; r < kRows; ++r) {
      T top = load(r, 0);
      for (int j = 16; j < columns; j += 16) top = V::Max(top, load(r, j));
      rows[r] = top;
    }
    const T old = V::Load(max);
    // All scores -inf: probabilities 0, not NaN.
    const T top = V::Max(V::Set1(kLowest), V::Max(old, V::template ReduceRows<true>(rows)));
    const T alpha = V::Exp2ForBf16(V::Mul(V::Sub(old, top), V::Set1(unit)));
    V::Store(max, top);
    for (int r = 0; r < kRows; ++r) {
      const T m = V::Set1(max[r]);
      T total = V::Zero();
      for (int j = 0; j < columns; j += 32) {
        const T low = V::Exp2ForBf16(V::Mul(V::Sub(load(r, j), m), V::Set1(unit)));
        const T high = V::Exp2ForBf16(V::Mul(V::Sub(load(r, j + 16), m), V::Set1(unit)));
        total = V::Add(total, V::Add(low, high));
        V::StoreBf16(reinterpret_cast<std::byte*>(scores + r * kKeys) + 2 * j, low, high);
      }
      rows[r] = total;
    }
    V::Store(sum, V::Fma(V::Load(sum), alpha, V::template ReduceRows<false>(rows)));
    return alpha;
  }
};

}  // namespace runahead
