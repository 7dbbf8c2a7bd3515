// Products in f32 with rows of superblocks (kernels/base/superblock.h), which lie in groups of sixteen as those of
// 8-bit products do (kernels/cpu/int8/product.h): for decode with dtypes other than int8.
#pragma once

#include <cstdint>

#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/simd/kernels.h"

namespace runahead {

// As CpuKernels::matvec, on groups [begin, end) of sixteen rows. On one thread; AVX2 must be there. An element's sum
// runs over the columns one by one, each one fused multiply-add of the nearest f32 to the weight: bitwise the same
// whatever m, begin and end are.
void SuperblockMatvec(const Int8View& w, const MatvecArgs& args, int64_t begin, int64_t end);

}  // namespace runahead
