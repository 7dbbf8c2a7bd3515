// How the rows of a type lie in StoredWeights: superblocks as for products in 8 bits (kernels/cpu/int8/product.h),
// other types as kernels/cpu/simd reads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/weight_type.h"
#include "kernels/cpu/simd/kernels.h"

namespace runahead {

// The functions of one form. They work on one thread.
struct StoredForm {
  int64_t group_rows;
  // A view without groups. Of superblocks it has no scale_bytes and block_bytes.
  StoredView (*view)(WeightType type, int64_t rows, int64_t cols);
  // Puts a row, as in the file, into row `in_group` of a group of the view that was zeroed before.
  void (*pack_row)(const StoredView& w, const std::byte* from, int64_t in_group, std::byte* group);
  // As those of CpuKernels.
  void (*dequantize_row)(const CpuKernels& kernels, const StoredView& w, int64_t row, float* out);
  void (*matvec)(const CpuKernels& kernels, const StoredView& w, const MatvecArgs& args, int64_t begin, int64_t end);

  int64_t Groups(const StoredView& w) const { return (w.rows + group_rows - 1) / group_rows; }
};

const StoredForm& StoredFormOf(WeightType type);

}  // namespace runahead
