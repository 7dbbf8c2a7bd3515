#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kPack = 4;  // floats in 16 bytes

__global__ void SoftCapKernel(Rows<float> x, float cap, int64_t rows, int64_t cols, bool packed) {
  const int64_t row = RowTiles::Row();
  if (row >= rows) return;
  float* at = x.at(row);
  for (int64_t c = kPack * RowTiles::FirstPack(); c < cols; c += kPack * RowTiles::PackStep()) {
    float values[kPack];
    LoadFloats<kPack>(at + c, cols - c, packed, values);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = cap * tanhf(values[i] / cap);
    StoreFloats<kPack>(values, cols - c, packed, at + c);
  }
}

}  // namespace

cudaError_t LaunchSoftCap(const CudaMatrix& x, float cap, cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return cudaSuccess;
  const Rows<float> rows(x);
  const RowTiles tiles(x.rows, (x.cols + kPack - 1) / kPack);
  return Launch(SoftCapKernel, tiles.grid, tiles.block, stream, rows, cap, x.rows, x.cols, rows.IsPacked<kPack>());
}

}  // namespace runahead
