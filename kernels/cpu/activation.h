// Activation functions in place, and what Linear does last.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/op_params.h"

namespace runahead {

void ApplyActivation(Activation activation, float* values, int64_t n);

// row[i] = activation(row[i] + bias[i]); `bias` may be null.
void FinishLinear(const float* bias, std::optional<Activation> activation, float* row, int64_t n);

}  // namespace runahead
