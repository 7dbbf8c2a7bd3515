#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

template <typename In, typename Out>
__global__ void EmbedKernel(Rows<In> table, const int32_t* ids, bool accumulate, Rows<Out> out, int64_t rows,
                            int64_t cols, bool table_packed, bool out_packed) {
  constexpr int N = kPackSize<In, Out>;
  const int64_t row = RowTiles::Row();
  if (row >= rows) return;
  const In* from = table.at(ids[row]);
  Out* to = out.at(row);
  for (int64_t c = N * RowTiles::FirstPack(); c < cols; c += N * RowTiles::PackStep()) {
    float values[N];
    LoadFloats<N>(from + c, cols - c, table_packed, values);
    if (accumulate) {
      float before[N];
      LoadFloats<N>(to + c, cols - c, out_packed, before);
      for (int i = 0; i < N; ++i) values[i] += before[i];
    }
    StoreFloats<N>(values, cols - c, out_packed, to + c);
  }
}

}  // namespace

cudaError_t LaunchEmbed(const CudaMatrix& table, const int32_t* ids, bool accumulate, const CudaMatrix& out,
                        cudaStream_t stream) {
  if (out.rows == 0 || out.cols == 0) return cudaSuccess;
  return ForDTypes(table.dtype, out.dtype, [&]<typename In, typename Out>(In*, Out*) {
    constexpr int N = kPackSize<In, Out>;
    const Rows<In> from(table);
    const Rows<Out> to(out);
    const RowTiles tiles(out.rows, (out.cols + N - 1) / N);
    return Launch(EmbedKernel<In, Out>, tiles.grid, tiles.block, stream, from, ids, accumulate, to, out.rows, out.cols,
                  from.template IsPacked<N>(), to.template IsPacked<N>());
  });
}

}  // namespace runahead
