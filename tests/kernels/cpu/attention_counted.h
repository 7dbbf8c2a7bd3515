// The attention kernel of AVX2 with its multiplications counted, for tests of what is computed and what is skipped.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_kernels.h"

namespace runahead {

const PrefillKernels& CountedPrefillKernels();

// Vectors of kCountedLanes that these kernels multiplied on this thread, in scores and in sums over V, since the last
// call.
inline constexpr int kCountedLanes = 8;
int64_t TakeCountedProducts();

}  // namespace runahead
