// Sums in the order of k.
#include "tests/testing/cuda_emulation/plain_gemm.h"

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

__global__ void PlainGemm(PlainGemmArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= args.m * args.n) return;
  const int64_t row = index / args.n, col = index % args.n;
  float sum = 0;
  for (int64_t i = 0; i < args.k; ++i) {
    sum += LoadFloat(args.dtype, args.x, row * args.x_stride + i) * LoadFloat(args.dtype, args.w, col * args.k + i);
  }
  const int64_t at = row * args.out_stride + col;
  if (args.accumulate) sum += LoadFloat(args.out_dtype, args.out, at);
  StoreFloat(sum, args.out_dtype, args.out, at);
}

}  // namespace

cudaError_t LaunchPlainGemm(const PlainGemmArgs& args, cudaStream_t stream) {
  if (args.m * args.n == 0) return cudaSuccess;
  return Launch(PlainGemm, dim3(static_cast<unsigned>((args.m * args.n + 255) / 256)), dim3(256), stream, args);
}

}  // namespace runahead
