// The second half of decode: what the pieces of a sequence gave becomes one result.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/flash_kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

// A block for each row and head, a thread for each element. Pieces are summed in their order.
template <typename T>
__global__ void MergePieces(const FlashDecodeRow* rows, const float* means, const float* logs, int heads, Rows<T> out) {
  const FlashDecodeRow row = rows[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y);
  const int head_dim = static_cast<int>(blockDim.x);
  const int d = static_cast<int>(threadIdx.x);
  const float* row_logs = logs + static_cast<int64_t>(row.first_piece) * heads + head;
  const float* row_means = means + (static_cast<int64_t>(row.first_piece) * heads + head) * head_dim + d;
  float max = row_logs[0];
  for (int i = 1; i < row.pieces; ++i) max = fmaxf(max, row_logs[static_cast<int64_t>(i) * heads]);
  float weights = 0.0f, sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < row.pieces; ++i) {
    const float weight = exp2f(row_logs[static_cast<int64_t>(i) * heads] - max);
    weights += weight;
    sum = fmaf(weight, row_means[static_cast<int64_t>(i) * heads * head_dim], sum);
  }
  StoreFloat(sum / weights, out.at(row.query_row) + head * head_dim + d);
}

}  // namespace

cudaError_t LaunchDecodeMerge(const FlashDecodeArgs& args, cudaStream_t stream) {
  const FlashPartials partials = PartialsIn(args);
  const dim3 grid(static_cast<unsigned>(args.row_count), static_cast<unsigned>(args.heads));
  return ForDType(args.out.dtype, [&](auto* out) {
    using T = std::remove_pointer_t<decltype(out)>;
    return Launch(&MergePieces<T>, grid, dim3(static_cast<unsigned>(args.head_dim)), stream, args.rows, partials.means,
                  partials.logs, args.heads, Rows<T>(args.out));
  });
}

}  // namespace runahead
