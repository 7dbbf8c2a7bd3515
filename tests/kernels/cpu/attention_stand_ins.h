// The attention kernels of bf16 over stand-ins for the instructions that they are made for, so that their logic is
// tested on machines without these.
#pragma once

#include "kernels/cpu/attention_kernels.h"

namespace runahead {

// The vectors in plain C++, and the tiles in memory: for every machine.
const PrefillKernels& PlainBf16PrefillKernels();
const PrefillKernels& PlainAmxPrefillKernels();

// The tiles only. Needs AVX512_BF16.
const PrefillKernels& EmulatedAmxPrefillKernels();

}  // namespace runahead
