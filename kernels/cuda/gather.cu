#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

// Where rows come from and go to.
struct Gathered {
  const int32_t* rows;
  __device__ RowMove operator()(int64_t i) const { return {rows[i], static_cast<int32_t>(i)}; }
};
struct Exchanged {
  const RowMove* rows;
  __device__ RowMove operator()(int64_t i) const { return rows[i]; }
};

// Rows are moved as they are: T is as large as an element.
template <typename T, typename Moves>
struct RowGather {
  Rows<T> x;
  Rows<T> out;
  Moves moves;
  int64_t count;
  int64_t cols;
  bool packed;  // x and out
};

template <typename T, typename Moves>
__global__ void GatherRowsKernel(RowGather<T, Moves> gather) {
  constexpr int N = kPackSize<T, T>;
  const int64_t i = RowTiles::Row();
  if (i >= gather.count) return;
  const RowMove move = gather.moves(i);
  const T* from = gather.x.at(move.from);
  T* to = gather.out.at(move.to);
  for (int64_t c = N * RowTiles::FirstPack(); c < gather.cols; c += N * RowTiles::PackStep()) {
    if (gather.packed && gather.cols - c >= N) {
      *reinterpret_cast<Pack<T, N>*>(to + c) = *reinterpret_cast<const Pack<T, N>*>(from + c);
    } else {
      for (int64_t j = c; j < gather.cols && j < c + N; ++j) to[j] = from[j];
    }
  }
}

template <typename T, typename Moves>
cudaError_t LaunchMove(const CudaMatrix& x, const Moves& moves, int64_t count, const CudaMatrix& out,
                       cudaStream_t stream) {
  constexpr int N = kPackSize<T, T>;
  const Rows<T> from(x);
  const Rows<T> to(out);
  const RowGather<T, Moves> gather = {.x = from,
                                      .out = to,
                                      .moves = moves,
                                      .count = count,
                                      .cols = x.cols,
                                      .packed = from.template IsPacked<N>() && to.template IsPacked<N>()};
  if (gather.count == 0 || gather.cols == 0) return cudaSuccess;
  const RowTiles tiles(gather.count, (gather.cols + N - 1) / N);
  return Launch(GatherRowsKernel<T, Moves>, tiles.grid, tiles.block, stream, gather);
}

template <typename Moves>
cudaError_t LaunchMoves(const CudaMatrix& x, const Moves& moves, int64_t count, const CudaMatrix& out,
                        cudaStream_t stream) {
  return x.dtype == DType::kF32 ? LaunchMove<uint32_t>(x, moves, count, out, stream)
                                : LaunchMove<uint16_t>(x, moves, count, out, stream);
}

}  // namespace

cudaError_t LaunchGatherRows(const CudaMatrix& x, const int32_t* rows, const CudaMatrix& out, cudaStream_t stream) {
  return LaunchMoves(x, Gathered{rows}, out.rows, out, stream);
}

cudaError_t LaunchExchangeRows(const CudaMatrix& x, const RowMove* rows, int64_t count, const CudaMatrix& out,
                               cudaStream_t stream) {
  return LaunchMoves(x, Exchanged{rows}, count, out, stream);
}

}  // namespace runahead
