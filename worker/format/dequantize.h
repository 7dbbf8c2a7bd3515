// Scalar conversion of GGUF rows to floats: the reference for faster kernels, and what the loaders use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/weight_type.h"

namespace runahead {

// IEEE half precision to single precision, exact; infinities and NaN included.
float Float16ToFloat(uint16_t half);

// bfloat16 to single precision, exact.
float BFloat16ToFloat(uint16_t value);

// out[0:n) = the n values whose blocks begin at `row`. n is a multiple of BlockOf(type).elements; `row` holds
// WeightRowBytes(type, n) bytes and needs no alignment.
void DequantizeRow(WeightType type, const std::byte* row, int64_t n, float* out);

}  // namespace runahead
