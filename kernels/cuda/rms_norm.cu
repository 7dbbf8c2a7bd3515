#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kPack = 4;  // floats in 16 bytes
constexpr int kLeastThreads = 256;
constexpr int kMostThreads = 1024;
constexpr int64_t kWarpCols = 1024;  // a warp takes rows up to here alone: eight loads of 16 bytes for each lane

struct RmsNormShape {
  int64_t rows;
  int64_t cols;
  int heads;  // of a row of x and out, `cols` each
  float eps;
  bool x_packed;
  bool weight_packed;
  bool out_packed;
};

// A row, or one of its heads, for each threadIdx.y: a warp each, or the whole block for one. The order of the sum
// depends on cols only. out may be x: a thread writes what it alone reads after the sum.
template <bool kHeads, typename Out>
__global__ void RmsNormKernel(Rows<float> x, const float* weight, Rows<Out> out, RmsNormShape shape) {
  const int64_t row = RowTiles::Row();
  if (row >= shape.rows) return;  // whole warps, and no block that is to meet
  const int64_t head_at = kHeads ? row % shape.heads * shape.cols : 0;
  const float* from = x.at(kHeads ? row / shape.heads : row) + head_at;
  const int64_t first = kPack * static_cast<int64_t>(threadIdx.x);
  const int64_t step = kPack * static_cast<int64_t>(blockDim.x);
  float sum = 0.0f;
  for (int64_t c = first; c < shape.cols; c += step) {
    float values[kPack];
    LoadFloats<kPack>(from + c, shape.cols - c, shape.x_packed, values);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += values[i] * values[i];
  }
  sum = blockDim.x == kWarpSize ? WarpReduce(sum, Add()) : BlockReduce(sum, Add());
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(shape.cols) + shape.eps);
  Out* to = out.at(kHeads ? row / shape.heads : row) + head_at;
  for (int64_t c = first; c < shape.cols; c += step) {
    float values[kPack];
    float weights[kPack];
    LoadFloats<kPack>(from + c, shape.cols - c, shape.x_packed, values);
    LoadFloats<kPack>(weight + c, shape.cols - c, shape.weight_packed, weights);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = values[i] * factor * weights[i];
    StoreFloats<kPack>(values, shape.cols - c, shape.out_packed, to + c);
  }
}

// A load for each thread where it can be: a step of decoding has few rows, and waits for each load.
dim3 BlockOf(int64_t cols) {
  if (cols <= kWarpCols) return dim3(kWarpSize, kLeastThreads / kWarpSize);
  int threads = kLeastThreads;
  while (threads < kMostThreads && kPack * threads < cols) threads *= 2;
  return dim3(threads);
}

}  // namespace

cudaError_t LaunchRmsNorm(const CudaMatrix& x, const float* weight, float eps, const CudaMatrix& out,
                          cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return cudaSuccess;
  const dim3 block = BlockOf(x.cols);
  const dim3 grid(static_cast<unsigned>((x.rows + block.y - 1) / block.y));
  return ForDType(out.dtype, [&]<typename Out>(Out*) {
    const Rows<float> from(x);
    const Rows<Out> to(out);
    const RmsNormShape shape = {.rows = x.rows,
                                .cols = x.cols,
                                .heads = 1,
                                .eps = eps,
                                .x_packed = from.IsPacked<kPack>(),
                                .weight_packed = IsPacked<float, kPack>(weight),
                                .out_packed = to.template IsPacked<kPack>()};
    return Launch(RmsNormKernel</*kHeads=*/false, Out>, grid, block, stream, from, weight, to, shape);
  });
}

cudaError_t LaunchHeadNorm(const CudaMatrix& x, int head_dim, const float* weight, float eps, cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return cudaSuccess;
  const int heads = static_cast<int>(x.cols / head_dim);
  const dim3 block = BlockOf(head_dim);
  const dim3 grid(static_cast<unsigned>((x.rows * heads + block.y - 1) / block.y));
  const Rows<float> rows(x);
  const bool packed = rows.IsPacked<kPack>() && head_dim % kPack == 0;
  const RmsNormShape shape = {.rows = x.rows * heads,
                              .cols = head_dim,
                              .heads = heads,
                              .eps = eps,
                              .x_packed = packed,
                              .weight_packed = IsPacked<float, kPack>(weight),
                              .out_packed = packed};
  return Launch(RmsNormKernel</*kHeads=*/true, float>, grid, block, stream, rows, weight, rows, shape);
}

}  // namespace runahead
