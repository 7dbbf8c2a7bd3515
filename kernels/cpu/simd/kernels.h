// The table of kernels that exist once per ISA, and the layout of weights that stay as stored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/op_params.h"
#include "kernels/base/weights.h"

namespace runahead {

// Rows of one WeightType, not of superblocks, in groups of four. A group is its four rows' scales ([4][blocks][scales] f16), padded to 64
// bytes, then its four rows' elements ([4][blocks][block_bytes], as in the file without the scales), padded to 64
// bytes. A block is 32 columns; float types have no scales and are padded with zeros to whole blocks, as is the last
// group.
struct StoredView {
  WeightType type = WeightType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t blocks = 0;      // ceil(cols / 32)
  size_t scale_bytes = 0;  // of the scales of a group, padded
  size_t block_bytes = 0;  // of the elements of one block
  size_t group_bytes = 0;
  const std::byte* groups = nullptr;
};
inline constexpr int64_t kGroupRows = 4;
inline constexpr int64_t kBlockCols = 32;

// out[m, n] (+)= sum_k x[m, k] * w[n, k].
struct MatvecArgs {
  const float* x = nullptr;  // [m, 32 * blocks]: columns past w.cols must be readable and finite
  int64_t x_stride = 0;
  int64_t m = 0;
  void* out = nullptr;  // column n is row begin_row + n of the view
  int64_t out_stride = 0;
  DType out_dtype = DType::kF32;  // f32, or bf16 without accumulate
  bool accumulate = false;
  int64_t begin_row = 0;  // rows of the view outside of these are left out
  int64_t end_row = INT64_MAX;
};

// Kernels work on one thread and allocate nothing. Types are f32 and bf16 (as uint16_t bits) where a DType is given.
struct CpuKernels {
  // Groups [begin, end). Element [m, n] is bitwise the same whatever m, begin and end are.
  void (*matvec)(const StoredView& w, const MatvecArgs& args, int64_t begin, int64_t end);
  // out[0..cols) = row `row`, each element the f32 nearest to its exact value.
  void (*dequantize_row)(const StoredView& w, int64_t row, float* out);
  void (*rms_norm_row)(const float* x, const float* weight, float eps, int64_t dim, void* out, DType out_dtype);
  // Rotates pairs of one head in place by (cos | sin)[2*half]: elements (i, half + i), or interleaved (2i, 2i + 1).
  void (*rotate_head)(float* x, const float* cos_sin, int64_t half, bool interleaved);
  void (*convert_row)(const float* x, int64_t n, void* out, DType out_dtype);
  void (*activate_row)(Activation activation, float* values, int64_t n);  // in place
  // out[i] = activation(gate_up[i]) * gate_up[n + i].
  void (*gated_activate_row)(Activation activation, const void* gate_up, DType in_dtype, int64_t n, void* out,
                             DType out_dtype);
  // Device::TopK for one row; 1 <= k <= min(n, 128). NaN counts as minus infinity.
  void (*top_k_row)(const float* logits, int64_t n, int64_t k, int32_t* ids, float* values, float* log_sum);
};

// kAvx2 or above. All ISAs give bitwise the same results.
const CpuKernels& KernelsFor(bool avx512);

namespace avx2 {
extern const CpuKernels kKernels;
}
namespace avx512 {
extern const CpuKernels kKernels;
}

}  // namespace runahead
