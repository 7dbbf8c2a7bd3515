#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

// Rows are moved as they are: T is as large as an element.
template <typename T>
struct RowMove {
  Rows<T> x;
  Rows<T> out;
  const int32_t* rows;
  int64_t count;
  int64_t cols;
  bool packed;  // x and out
};

template <typename T, bool kScatter>
__global__ void MoveRowsKernel(RowMove<T> move) {
  constexpr int N = kPackSize<T, T>;
  const int64_t i = RowTiles::Row();
  if (i >= move.count) return;
  const int64_t chosen = move.rows[i];
  const T* from = move.x.at(kScatter ? i : chosen);
  T* to = move.out.at(kScatter ? chosen : i);
  for (int64_t c = N * RowTiles::FirstPack(); c < move.cols; c += N * RowTiles::PackStep()) {
    if (move.packed && move.cols - c >= N) {
      *reinterpret_cast<Pack<T, N>*>(to + c) = *reinterpret_cast<const Pack<T, N>*>(from + c);
    } else {
      for (int64_t j = c; j < move.cols && j < c + N; ++j) to[j] = from[j];
    }
  }
}

template <typename T, bool kScatter>
cudaError_t LaunchMove(const CudaMatrix& x, const int32_t* rows, const CudaMatrix& out, cudaStream_t stream) {
  constexpr int N = kPackSize<T, T>;
  const Rows<T> from(x);
  const Rows<T> to(out);
  const RowMove<T> move = {.x = from,
                           .out = to,
                           .rows = rows,
                           .count = kScatter ? x.rows : out.rows,
                           .cols = x.cols,
                           .packed = from.template IsPacked<N>() && to.template IsPacked<N>()};
  if (move.count == 0 || move.cols == 0) return cudaSuccess;
  const RowTiles tiles(move.count, (move.cols + N - 1) / N);
  return Launch(MoveRowsKernel<T, kScatter>, tiles.grid, tiles.block, stream, move);
}

template <bool kScatter>
cudaError_t LaunchMove(const CudaMatrix& x, const int32_t* rows, const CudaMatrix& out, cudaStream_t stream) {
  return x.dtype == DType::kF32 ? LaunchMove<uint32_t, kScatter>(x, rows, out, stream)
                                : LaunchMove<uint16_t, kScatter>(x, rows, out, stream);
}

}  // namespace

cudaError_t LaunchGatherRows(const CudaMatrix& x, const int32_t* rows, const CudaMatrix& out, cudaStream_t stream) {
  return LaunchMove<false>(x, rows, out, stream);
}

cudaError_t LaunchScatterRows(const CudaMatrix& x, const int32_t* rows, const CudaMatrix& out, cudaStream_t stream) {
  return LaunchMove<true>(x, rows, out, stream);
}

}  // namespace runahead
