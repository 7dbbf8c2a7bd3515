// Compiled with AVX2 flags (see tests/kernels/CMakeLists.txt).
#include "tests/kernels/cpu/attention_counted.h"

#include "kernels/cpu/attention_prefill_f32.h"
#include "kernels/cpu/attention_vec256.h"

namespace runahead {
namespace {

thread_local int64_t products = 0;

struct CountedVec256 : Vec256 {
  static T Fma(T a, T b, T c) {
    ++products;
    return Vec256::Fma(a, b, c);
  }
};
static_assert(CountedVec256::kLanes == kCountedLanes);

}  // namespace

const PrefillKernels& CountedPrefillKernels() {
  return PrefillF32<CountedVec256>::kKernels;
}

int64_t TakeCountedProducts() {
  const int64_t taken = products;
  products = 0;
  return taken;
}

}  // namespace runahead
