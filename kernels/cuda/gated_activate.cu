#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

// `packed`: the gates and the ups start where packs may be read.
template <typename In, typename Out>
__global__ void GatedActivateKernel(Rows<In> gate_up, Activation activation, Rows<Out> out, int64_t rows, int64_t cols,
                                    bool packed, bool out_packed) {
  constexpr int N = kPackSize<In, Out>;
  const int64_t row = RowTiles::Row();
  if (row >= rows) return;
  const In* gates = gate_up.at(row);
  const In* ups = gates + cols;
  Out* to = out.at(row);
  for (int64_t c = N * RowTiles::FirstPack(); c < cols; c += N * RowTiles::PackStep()) {
    float gate[N];
    float up[N];
    LoadFloats<N>(gates + c, cols - c, packed, gate);
    LoadFloats<N>(ups + c, cols - c, packed, up);
#pragma unroll
    for (int i = 0; i < N; ++i) gate[i] = Activated(activation, gate[i]) * up[i];
    StoreFloats<N>(gate, cols - c, out_packed, to + c);
  }
}

}  // namespace

cudaError_t LaunchGatedActivate(const CudaMatrix& gate_up, Activation activation, const CudaMatrix& out,
                                cudaStream_t stream) {
  if (out.rows == 0 || out.cols == 0) return cudaSuccess;
  return ForDTypes(gate_up.dtype, out.dtype, [&]<typename In, typename Out>(In*, Out*) {
    constexpr int N = kPackSize<In, Out>;
    const Rows<In> from(gate_up);
    const Rows<Out> to(out);
    const RowTiles tiles(out.rows, (out.cols + N - 1) / N);
    return Launch(GatedActivateKernel<In, Out>, tiles.grid, tiles.block, stream, from, activation, to, out.rows,
                  out.cols, from.template IsPacked<N>() && out.cols % N == 0, to.template IsPacked<N>());
  });
}

}  // namespace runahead
