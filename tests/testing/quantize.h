// Scalar quantisers of every GGUF type we read: the inverse of worker/format/dequantize.h, for synthetic checkpoints.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "kernels/base/weight_type.h"

namespace runahead {

// Round to nearest, ties to even; overflow gives infinity.
uint16_t FloatToFloat16(float value);
uint16_t FloatToBFloat16(float value);

// The bytes of `values` as `type`. Their number is a multiple of BlockOf(type).elements; rows lie one after the other.
// The error of an element is at most half a step of its block (the larger half of the range for the signed types); of
// the K types and IQ4 types see quantize_superblock.h.
std::string Quantize(WeightType type, absl::Span<const float> values);

}  // namespace runahead
