// Rows of a file in the layout of Int8View, and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/weight_type.h"

namespace runahead {

// Puts a row of `blocks` blocks, as in the file, into row `in_group` of a group that was zeroed before.
void PackInt8Row(WeightType type, const std::byte* from, int64_t blocks, int64_t in_group, std::byte* group);

// out[0..32 * blocks) = that row, each element the f32 nearest to its exact value.
void UnpackInt8Row(WeightType type, const std::byte* group, int64_t blocks, int64_t in_group, float* out);

}  // namespace runahead
