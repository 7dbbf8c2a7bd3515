#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kPack = 4;  // floats in 16 bytes
constexpr int kThreads = 256;
constexpr int64_t kWarpCols = 1024;  // a warp takes narrower rows alone: eight loads of 16 bytes for each lane

struct LayerNormShape {
  int64_t rows;
  int64_t cols;
  float eps;
  bool x_packed;
  bool affine_packed;  // weight and bias
  bool out_packed;
};

// Sum of f(x) over a row that a warp or a block shares. Its order depends on cols only.
template <typename Function>
__device__ float RowSum(const float* row, const LayerNormShape& shape, const Function& f) {
  float sum = 0.0f;
  for (int64_t c = kPack * static_cast<int64_t>(threadIdx.x); c < shape.cols; c += kPack * blockDim.x) {
    float values[kPack];
    LoadFloats<kPack>(row + c, shape.cols - c, shape.x_packed, values);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (c + i < shape.cols) sum += f(values[i]);
    }
  }
  return blockDim.x == kWarpSize ? WarpReduce(sum, Add()) : BlockReduce(sum, Add());
}

// A row for each threadIdx.y: a warp each, or the whole block for one.
template <typename Out>
__global__ void LayerNormKernel(Rows<float> x, const float* weight, const float* bias, Rows<Out> out,
                                LayerNormShape shape) {
  const int64_t row = RowTiles::Row();
  if (row >= shape.rows) return;  // whole warps, and no block that is to meet
  const float* from = x.at(row);
  const float count = static_cast<float>(shape.cols);
  const float mean = RowSum(from, shape, [](float value) { return value; }) / count;
  const float variance = RowSum(from, shape, [mean](float value) { return (value - mean) * (value - mean); }) / count;
  const float factor = 1.0f / sqrtf(variance + shape.eps);
  Out* to = out.at(row);
  for (int64_t c = kPack * static_cast<int64_t>(threadIdx.x); c < shape.cols; c += kPack * blockDim.x) {
    float values[kPack];
    float weights[kPack];
    float biases[kPack];
    LoadFloats<kPack>(from + c, shape.cols - c, shape.x_packed, values);
    LoadFloats<kPack>(weight + c, shape.cols - c, shape.affine_packed, weights);
    LoadFloats<kPack>(bias + c, shape.cols - c, shape.affine_packed, biases);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = (values[i] - mean) * factor * weights[i] + biases[i];
    StoreFloats<kPack>(values, shape.cols - c, shape.out_packed, to + c);
  }
}

}  // namespace

cudaError_t LaunchLayerNorm(const CudaMatrix& x, const float* weight, const float* bias, float eps,
                            const CudaMatrix& out, cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return cudaSuccess;
  const dim3 block = x.cols <= kWarpCols ? dim3(kWarpSize, kThreads / kWarpSize) : dim3(kThreads);
  const dim3 grid(static_cast<unsigned>((x.rows + block.y - 1) / block.y));
  return ForDType(out.dtype, [&]<typename Out>(Out*) {
    const Rows<float> from(x);
    const Rows<Out> to(out);
    const LayerNormShape shape = {.rows = x.rows,
                                  .cols = x.cols,
                                  .eps = eps,
                                  .x_packed = from.IsPacked<kPack>(),
                                  .affine_packed = IsPacked<float, kPack>(weight) && IsPacked<float, kPack>(bias),
                                  .out_packed = to.template IsPacked<kPack>()};
    return Launch(LayerNormKernel<Out>, grid, block, stream, from, weight, bias, to, shape);
  });
}

}  // namespace runahead
