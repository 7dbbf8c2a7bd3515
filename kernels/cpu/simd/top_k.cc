#include "kernels/cpu/simd/functions.h"
#include "kernels/cpu/simd/vec.h"

namespace runahead::RUNAHEAD_ISA {
namespace {

constexpr int64_t kMaxK = 512;

struct Entry {
  float value;
  int32_t id;
};

// Whether `a` comes after `b` in the result.
inline bool Worse(Entry a, Entry b) {
  return a.value < b.value || (a.value == b.value && a.id > b.id);
}

// A heap with its worst entry on top.
inline void SiftDown(Entry* heap, int64_t size, int64_t at) {
  const Entry entry = heap[at];
  for (int64_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
    if (child + 1 < size && Worse(heap[child + 1], heap[child])) ++child;
    if (!Worse(heap[child], entry)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = entry;
}

inline float NumberOrLowest(float x) {
  return x == x ? x : -__builtin_inff();
}

// Replaces the worst entry by each better one of the row. Later ids lose ties, so a strict comparison is enough.
inline void Scan(const float* logits, int64_t n, int64_t k, Entry* heap) {
  for (int64_t i = k; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : kLanes;
    const Vec values = lanes == kLanes ? Load(logits + i) : LoadPartial(logits + i, lanes, -__builtin_inff());
    uint32_t better = GreaterBits(values, Set1(heap[0].value));
    for (; better != 0; better &= better - 1) {
      const int64_t id = i + __builtin_ctz(better);
      if (logits[id] > heap[0].value) {
        heap[0] = {logits[id], static_cast<int32_t>(id)};
        SiftDown(heap, k, 0);
      }
    }
  }
}

// Blocks of f32 sums are added up in double, so that the error does not grow with the vocabulary. NaN where one of the
// logits is not finite, so that a sampler sees it: Exp makes a number of it, hence the logit goes in too, times zero.
inline double SumExp(const float* logits, int64_t n, float largest) {
  constexpr int64_t kBlock = 64 * kLanes;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    Vec sum = Zero();
    for (int64_t i = begin; i < end; i += kLanes) {
      const Vec x = end - i >= kLanes ? Load(logits + i) : LoadPartial(logits + i, end - i, -__builtin_inff());
      const Vec seen = end - i >= kLanes ? x : LoadPartial(logits + i, end - i);
      sum = Fma(seen, Zero(), Add(sum, Exp(Sub(x, Set1(largest)))));
    }
    total += AddLanes(sum);
  }
  return total;
}

}  // namespace

void TopKRow(const float* logits, int64_t n, int64_t k, int32_t* ids, float* values, float* log_sum) {
  Entry heap[kMaxK];
  for (int64_t i = 0; i < k; ++i) heap[i] = {NumberOrLowest(logits[i]), static_cast<int32_t>(i)};
  for (int64_t i = k / 2 - 1; i >= 0; --i) SiftDown(heap, k, i);
  Scan(logits, n, k, heap);
  for (int64_t left = k; left > 0; --left) {
    ids[left - 1] = heap[0].id;
    values[left - 1] = heap[0].value;
    heap[0] = heap[left - 1];
    SiftDown(heap, left - 1, 0);
  }
  const float largest = values[0];
  const bool finite = largest - largest == 0.0f;
  *log_sum = finite ? largest + static_cast<float>(__builtin_log(SumExp(logits, n, largest))) : largest;
}

}  // namespace runahead::RUNAHEAD_ISA
