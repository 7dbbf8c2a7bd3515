// The bf16 kernels over arrays in place of vectors (attention_vec512_bf16.h has the contract). Compiled without flags
// of any ISA.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_prefill_bf16.h"
#include "tests/kernels/cpu/attention_stand_ins.h"
#include "tests/kernels/cpu/emulated_tiles.h"

namespace runahead {
namespace {

struct PlainVec {
  static constexpr int kLanes = 16;
  static constexpr int kStripVecs = 4;
  struct T {
    float lanes[kLanes];
  };
  struct Row {
    BFloat16 elements[kLanes];
  };
  struct Pairs {
    BFloat16 elements[kLanes][2];
  };

  // Lane i: function(i).
  template <typename Function>
  static T Make(const Function& function) {
    T x;
    for (int i = 0; i < kLanes; ++i) x.lanes[i] = function(i);
    return x;
  }
  // A store of a whole vector that the machine would trap on.
  template <typename Vector>
  static void StoreAligned(void* p, const Vector& x) {
    if (reinterpret_cast<uintptr_t>(p) % sizeof(Vector) != 0) __builtin_trap();
    std::memcpy(p, &x, sizeof(x));
  }

  static T Zero() { return {}; }
  static T Set1(float x) {
    return Make([&](int) { return x; });
  }
  static T Load(const float* p) {
    T x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  static void Store(float* p, const T& x) { std::memcpy(p, &x, sizeof(x)); }
  static void StoreHalf(float* p, const T& x) { std::memcpy(p, &x, sizeof(x) / 2); }
  static void Store(BFloat16* p, const T& x, int count = kLanes) {
    for (int i = 0; i < count; ++i) p[i] = ToBFloat16(x.lanes[i]);
  }
  static void StoreHalf(BFloat16* p, const T& x) { Store(p, x, kLanes / 2); }

  static T Add(const T& a, const T& b) {
    return Make([&](int i) { return a.lanes[i] + b.lanes[i]; });
  }
  static T Sub(const T& a, const T& b) {
    return Make([&](int i) { return a.lanes[i] - b.lanes[i]; });
  }
  static T Mul(const T& a, const T& b) {
    return Make([&](int i) { return a.lanes[i] * b.lanes[i]; });
  }
  static T Fma(const T& a, const T& b, const T& c) {
    return Make([&](int i) { return a.lanes[i] * b.lanes[i] + c.lanes[i]; });
  }
  static float Max(float a, float b) { return a > b ? a : b; }
  static T Max(const T& a, const T& b) {
    return Make([&](int i) { return Max(a.lanes[i], b.lanes[i]); });
  }
  static T Exp2(const T& x) {
    return Make([&](int i) { return std::exp2(x.lanes[i]); });
  }
  static T Exp2ForBf16(const T& x) { return Exp2(x); }
  static float ReduceMax(const T& x) {
    float most = x.lanes[0];
    for (const float lane : x.lanes) most = Max(most, lane);
    return most;
  }
  static float ReduceAdd(const T& x) {
    float sum = 0.0f;
    for (const float lane : x.lanes) sum += lane;
    return sum;
  }
  template <bool kMaximum>
  static T ReduceRows(const T (&x)[kLanes]) {
    return Make([&](int i) { return kMaximum ? ReduceMax(x[i]) : ReduceAdd(x[i]); });
  }
  static T FillFrom(const T& x, int count, float fill) {
    return Make([&](int i) { return i < count ? x.lanes[i] : fill; });
  }
  static uint32_t Differ(const T& a, const T& b) {
    uint32_t lanes = 0;
    for (int i = 0; i < kLanes; ++i) lanes |= static_cast<uint32_t>(a.lanes[i] != b.lanes[i]) << i;
    return lanes;
  }

  static Row ZeroRow() { return {}; }
  static Pairs ZeroPairs() { return {}; }
  static BFloat16 Rounded(BFloat16 x) { return x; }
  static BFloat16 Rounded(Float16 x) { return ToBFloat16(ToFloat(x)); }
  static BFloat16 Rounded(float x) { return ToBFloat16(x); }
  template <class E>
  static Row LoadRow(const E* p, int left) {
    Row x = {};
    for (int i = 0; i < kLanes && i < left; ++i) x.elements[i] = Rounded(p[i]);
    return x;
  }
  template <class E>
  static Pairs LoadPairs(const E* p, int left) {
    Pairs x = {};
    for (int i = 0; i < 2 * kLanes && i < left; ++i) x.elements[i / 2][i % 2] = Rounded(p[i]);
    return x;
  }
  static void StorePairs(void* p, const Pairs& x) { StoreAligned(p, x); }
  static Row FiniteRow(Row x, bool* bad) {
    for (BFloat16& element : x.elements) {
      if (std::isfinite(ToFloat(element))) continue;
      element = {};
      *bad = true;
    }
    return x;
  }
  static Pairs Interleave(const Row& first, const Row& second) {
    Pairs pairs;
    for (int i = 0; i < kLanes; ++i) {
      pairs.elements[i][0] = first.elements[i];
      pairs.elements[i][1] = second.elements[i];
    }
    return pairs;
  }
  static void TransposePairs(const Pairs (&in)[kLanes], std::byte* out) {
    for (int j = 0; j < kLanes; ++j) {
      Pairs column;
      for (int i = 0; i < kLanes; ++i) std::memcpy(column.elements[i], in[i].elements[j], sizeof(column.elements[i]));
      StoreAligned(out + j * sizeof(column), column);
    }
  }
  static void StoreBf16(void* p, const T& low, const T& high) {
    BFloat16 both[2 * kLanes];
    for (int i = 0; i < kLanes; ++i) {
      both[i] = ToBFloat16(low.lanes[i]);
      both[kLanes + i] = ToBFloat16(high.lanes[i]);
    }
    std::memcpy(p, both, sizeof(both));
  }
  static T FmaPairs(const T& a, const T& b, const T& c) {
    const auto x = std::bit_cast<Pairs>(a), y = std::bit_cast<Pairs>(b);
    return Make([&](int i) {
      return c.lanes[i] + ToFloat(x.elements[i][1]) * ToFloat(y.elements[i][1]) +
             ToFloat(x.elements[i][0]) * ToFloat(y.elements[i][0]);
    });
  }
};

}  // namespace

const PrefillKernels& PlainBf16PrefillKernels() {
  return PrefillBf16<PlainVec>::kKernels;
}

const PrefillKernels& PlainAmxPrefillKernels() {
  return PrefillAmx<PlainVec, EmulatedTiles<PlainVec>>::kKernels;
}

}  // namespace runahead
