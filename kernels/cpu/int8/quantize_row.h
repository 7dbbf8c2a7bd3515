// How a row of activations becomes 8 bits: one code for all instruction sets.
#pragma once

#include <cstdint>

#include "kernels/cpu/int8/product.h"

namespace runahead {

// Int8Kernels::quantize_row. Needs AVX2 and FMA.
void Int8QuantizeRow(const float* x, int64_t blocks, int64_t row, const Int8Panel& panel);

}  // namespace runahead
