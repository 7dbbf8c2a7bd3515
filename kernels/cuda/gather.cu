#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

// Rows are moved as they are: T is as large as an element.
template <typename T>
struct RowGather {
  Rows<T> x;
  Rows<T> out;
  const int32_t* rows;
  int64_t count;
  int64_t cols;
  bool packed;    // x and out
  bool in_place;  // a row keeps its number: ExchangeRows
};

template <typename T>
__global__ void GatherRowsKernel(RowGather<T> gather) {
  constexpr int N = kPackSize<T, T>;
  const int64_t i = RowTiles::Row();
  if (i >= gather.count) return;
  const T* from = gather.x.at(gather.rows[i]);
  T* to = gather.out.at(gather.in_place ? gather.rows[i] : i);
  for (int64_t c = N * RowTiles::FirstPack(); c < gather.cols; c += N * RowTiles::PackStep()) {
    if (gather.packed && gather.cols - c >= N) {
      *reinterpret_cast<Pack<T, N>*>(to + c) = *reinterpret_cast<const Pack<T, N>*>(from + c);
    } else {
      for (int64_t j = c; j < gather.cols && j < c + N; ++j) to[j] = from[j];
    }
  }
}

template <typename T>
cudaError_t LaunchMove(const CudaMatrix& x, const int32_t* rows, int64_t count, bool in_place, const CudaMatrix& out,
                       cudaStream_t stream) {
  constexpr int N = kPackSize<T, T>;
  const Rows<T> from(x);
  const Rows<T> to(out);
  const RowGather<T> gather = {.x = from,
                               .out = to,
                               .rows = rows,
                               .count = count,
                               .cols = x.cols,
                               .packed = from.template IsPacked<N>() && to.template IsPacked<N>(),
                               .in_place = in_place};
  if (gather.count == 0 || gather.cols == 0) return cudaSuccess;
  const RowTiles tiles(gather.count, (gather.cols + N - 1) / N);
  return Launch(GatherRowsKernel<T>, tiles.grid, tiles.block, stream, gather);
}

}  // namespace

cudaError_t LaunchGatherRows(const CudaMatrix& x, const int32_t* rows, const CudaMatrix& out, cudaStream_t stream) {
  return x.dtype == DType::kF32 ? LaunchMove<uint32_t>(x, rows, out.rows, false, out, stream)
                                : LaunchMove<uint16_t>(x, rows, out.rows, false, out, stream);
}

cudaError_t LaunchExchangeRows(const CudaMatrix& x, const int32_t* rows, int64_t count, const CudaMatrix& out,
                               cudaStream_t stream) {
  return x.dtype == DType::kF32 ? LaunchMove<uint32_t>(x, rows, count, true, out, stream)
                                : LaunchMove<uint16_t>(x, rows, count, true, out, stream);
}

}  // namespace runahead
