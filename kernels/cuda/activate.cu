#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

struct FinishShape {
  int64_t rows;
  int64_t cols;
  bool activated;
  Activation activation;
  bool x_packed;
  bool bias_packed;
  bool out_packed;
};

template <typename In, typename Out>
__global__ void FinishKernel(Rows<In> x, const float* bias, Rows<Out> out, FinishShape shape) {
  constexpr int N = kPackSize<In, Out>;
  const int64_t row = RowTiles::Row();
  if (row >= shape.rows) return;
  for (int64_t c = N * RowTiles::FirstPack(); c < shape.cols; c += N * RowTiles::PackStep()) {
    float values[N];
    float biases[N] = {};
    LoadFloats<N>(x.at(row) + c, shape.cols - c, shape.x_packed, values);
    if (bias != nullptr) LoadFloats<N>(bias + c, shape.cols - c, shape.bias_packed, biases);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float sum = bias == nullptr ? values[i] : values[i] + biases[i];
      values[i] = shape.activated ? Activated(shape.activation, sum) : sum;
    }
    StoreFloats<N>(values, shape.cols - c, shape.out_packed, out.at(row) + c);
  }
}

}  // namespace

cudaError_t LaunchActivate(const CudaMatrix& x, Activation activation, const CudaMatrix& out, cudaStream_t stream) {
  return LaunchBias(x, nullptr, activation, out, stream);
}

cudaError_t LaunchBias(const CudaMatrix& x, const float* bias, std::optional<Activation> activation,
                       const CudaMatrix& out, cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return cudaSuccess;
  return ForDTypes(x.dtype, out.dtype, [&]<typename In, typename Out>(In*, Out*) {
    constexpr int N = kPackSize<In, Out>;
    const Rows<In> from(x);
    const Rows<Out> to(out);
    const RowTiles tiles(x.rows, (x.cols + N - 1) / N);
    const FinishShape shape = {.rows = x.rows,
                               .cols = x.cols,
                               .activated = activation.has_value(),
                               .activation = activation.value_or(Activation::kRelu),
                               .x_packed = from.template IsPacked<N>(),
                               .bias_packed = IsPacked<float, N>(bias),
                               .out_packed = to.template IsPacked<N>()};
    return Launch(FinishKernel<In, Out>, tiles.grid, tiles.block, stream, from, bias, to, shape);
  });
}

}  // namespace runahead
