#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

enum class Finish { kNone, kRelu, kGelu };

__device__ float Finished(Finish finish, float x) {
  if (finish == Finish::kRelu) return x < 0.0f ? 0.0f : x;  // NaN stays NaN
  if (finish == Finish::kNone) return x;
  // x/2 * (1 + tanh(z)) = x / (1 + e^(-2z)).
  constexpr float kTwoRootTwoByPi = 1.5957691216f;  // 2 * sqrt(2/pi)
  return x / (1.0f + expf(-kTwoRootTwoByPi * (x + 0.044715f * x * x * x)));
}

struct FinishShape {
  int64_t rows;
  int64_t cols;
  Finish finish;
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
    for (int i = 0; i < N; ++i) values[i] = Finished(shape.finish, bias == nullptr ? values[i] : values[i] + biases[i]);
    StoreFloats<N>(values, shape.cols - c, shape.out_packed, out.at(row) + c);
  }
}

cudaError_t LaunchFinish(const CudaMatrix& x, const float* bias, Finish finish, const CudaMatrix& out,
                         cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return cudaSuccess;
  return ForDTypes(x.dtype, out.dtype, [&]<typename In, typename Out>(In*, Out*) {
    constexpr int N = kPackSize<In, Out>;
    const Rows<In> from(x);
    const Rows<Out> to(out);
    const RowTiles tiles(x.rows, (x.cols + N - 1) / N);
    const FinishShape shape = {.rows = x.rows,
                               .cols = x.cols,
                               .finish = finish,
                               .x_packed = from.template IsPacked<N>(),
                               .bias_packed = IsPacked<float, N>(bias),
                               .out_packed = to.template IsPacked<N>()};
    return Launch(FinishKernel<In, Out>, tiles.grid, tiles.block, stream, from, bias, to, shape);
  });
}

Finish FinishOf(Activation activation) {
  return activation == Activation::kRelu ? Finish::kRelu : Finish::kGelu;
}

}  // namespace

cudaError_t LaunchActivate(const CudaMatrix& x, Activation activation, const CudaMatrix& out, cudaStream_t stream) {
  return LaunchFinish(x, nullptr, FinishOf(activation), out, stream);
}

cudaError_t LaunchBias(const CudaMatrix& x, const float* bias, std::optional<Activation> activation,
                       const CudaMatrix& out, cudaStream_t stream) {
  return LaunchFinish(x, bias, activation.has_value() ? FinishOf(*activation) : Finish::kNone, out, stream);
}

}  // namespace runahead
