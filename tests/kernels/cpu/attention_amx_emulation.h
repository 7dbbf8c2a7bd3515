// The AMX attention kernel over tiles in memory, so that its logic is tested on machines without AMX.
#pragma once

#include "kernels/cpu/attention_kernels.h"

namespace runahead {

// Needs AVX-512 with BF16.
const PrefillKernels& EmulatedAmxPrefillKernels();

}  // namespace runahead
