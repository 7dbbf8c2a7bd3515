// What the pieces of a sequence gave becomes one result.
#include <cmath>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

// A block for each row and head, a thread for each element. Pieces are summed in their order. What an empty one holds
// does not count.
template <typename T>
__global__ void MergePiecesKernel(Rows<float> partials, const PieceRange* ranges, Rows<T> out) {
  const PieceRange range = ranges[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y);
  const int head_dim = static_cast<int>(blockDim.x);
  const int d = static_cast<int>(threadIdx.x);
  const float* const values = partials.at(range.first) + head * head_dim + d;
  const float* const logs = partials.at(range.first) + static_cast<int64_t>(gridDim.y) * head_dim + head;
  float max = -INFINITY;
  for (int i = 0; i < range.count; ++i) max = fmaxf(max, logs[i * partials.stride]);
  float weights = 0.0f, sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < range.count; ++i) {
    if (logs[i * partials.stride] == -INFINITY) continue;
    const float weight = exp2f(logs[i * partials.stride] - max);
    weights += weight;
    sum = fmaf(weight, values[i * partials.stride], sum);
  }
  // Scores of -inf everywhere have no softmax: zero.
  StoreFloat(weights == 0.0f ? 0.0f : sum / weights, out.at(blockIdx.x) + head * head_dim + d);
}

}  // namespace

cudaError_t LaunchMergePieces(const CudaMatrix& partials, const PieceRange* ranges, int heads, const CudaMatrix& out,
                              cudaStream_t stream) {
  if (out.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(out.rows), static_cast<unsigned>(heads));
  return ForDType(out.dtype, [&]<typename T>(T*) {
    return Launch(&MergePiecesKernel<T>, grid, dim3(static_cast<unsigned>(out.cols / heads)), stream,
                  Rows<float>(partials), ranges, Rows<T>(out));
  });
}

}  // namespace runahead
