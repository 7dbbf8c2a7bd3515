#include <cmath>

#include "kernels/cuda/plain_attention.cuh"

namespace runahead {
namespace {

// One piece of one head. Pieces begin at multiples of what all warps take in a turn, so that it does not matter for the
// order of the sums that positions are counted from there.
template <int kDims, typename Kv>
__device__ void AttendPiece(const AttentionArgs& args, const AttentionPiece& piece, float* partial) {
  const int64_t hidden = args.window > 0 && args.window < piece.left ? piece.left - args.window : 0;
  const Softmax<kDims> softmax = AttendRange<kDims, Kv>(args, piece.query_row, piece.first_page, hidden, piece.tokens);
  if (threadIdx.y != 0) return;
  float* const values = partial + static_cast<int64_t>(blockIdx.y) * args.head_dim;
  const int d = static_cast<int>(threadIdx.x) * kDims;
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    if (d + i < args.head_dim) values[d + i] = softmax.sum == 0.0f ? 0.0f : softmax.values[i] / softmax.sum;
  }
  constexpr float kLog2OfE = 1.44269504f;
  if (threadIdx.x == 0) {
    float* const logs = partial + static_cast<int64_t>(args.heads) * args.head_dim;
    logs[blockIdx.y] = softmax.sum == 0.0f ? -INFINITY : softmax.max * kLog2OfE + log2f(softmax.sum);
  }
}

// Grid: run, head. The queries of a run find its KV in the cache.
template <int kDims, typename Kv>
__global__ void __launch_bounds__(kAttentionWarps* kWarpSize)
    PlainPiecesKernel(AttentionArgs args, AttentionWork work, Rows<float> partials) {
  const PieceRun run = work.runs[blockIdx.x];
  if (run.first < 0) return;
  for (int32_t i = 0; i < run.count; ++i) {
    const int32_t number = run.first + i * run.step;
    const AttentionPiece piece = work.pieces[number];
    if (piece.tokens > 0) AttendPiece<kDims, Kv>(args, piece, partials.at(number));
  }
}

}  // namespace

cudaError_t LaunchPlainPieces(const AttentionArgs& args, const AttentionWork& work, const CudaMatrix& partials,
                              cudaStream_t stream) {
  if (work.count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(work.count), static_cast<unsigned>(args.heads));
  return ForHeads(args, [&]<int kDims, typename Kv>() {
    return Launch(PlainPiecesKernel<kDims, Kv>, grid, dim3(kWarpSize, kAttentionWarps), stream, args, work,
                  Rows<float>(partials));
  });
}

}  // namespace runahead
