#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kPack = 4;  // floats in 16 bytes

__global__ void ScaleKernel(Rows<float> x, float factor, bool accumulate, Rows<float> out, int64_t rows, int64_t cols,
                            bool x_packed, bool out_packed) {
  const int64_t row = RowTiles::Row();
  if (row >= rows) return;
  float* to = out.at(row);
  for (int64_t c = kPack * RowTiles::FirstPack(); c < cols; c += kPack * RowTiles::PackStep()) {
    float values[kPack];
    float before[kPack] = {};
    LoadFloats<kPack>(x.at(row) + c, cols - c, x_packed, values);
    if (accumulate) LoadFloats<kPack>(to + c, cols - c, out_packed, before);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = before[i] + factor * values[i];
    StoreFloats<kPack>(values, cols - c, out_packed, to + c);
  }
}

}  // namespace

cudaError_t LaunchScale(const CudaMatrix& x, float factor, bool accumulate, const CudaMatrix& out,
                        cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return cudaSuccess;
  const Rows<float> from(x);
  const Rows<float> to(out);
  const RowTiles tiles(x.rows, (x.cols + kPack - 1) / kPack);
  return Launch(ScaleKernel, tiles.grid, tiles.block, stream, from, factor, accumulate, to, x.rows, x.cols,
                from.IsPacked<kPack>(), to.IsPacked<kPack>());
}

}  // namespace runahead
