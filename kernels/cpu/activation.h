// What Linear does last.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cpu/simd/kernels.h"

namespace runahead {

// row[i] = activation(row[i] + bias[i]); `bias` may be null.
void FinishLinear(const CpuKernels& kernels, const float* bias, std::optional<Activation> activation, float* row,
                  int64_t n);

}  // namespace runahead
