#include "kernels/cuda/plain_attention.cuh"

namespace runahead {
namespace {

struct Items {
  const AttentionItem* items;
  int count;
};

// Grid: query of an item, head, item.
template <int kDims, typename Kv>
__global__ void __launch_bounds__(kAttentionWarps* kWarpSize)
    PlainAttentionKernel(AttentionArgs args, Items items, CudaMatrix out) {
  const int64_t d = static_cast<int64_t>(threadIdx.x) * kDims;
  for (int which = static_cast<int>(blockIdx.z); which < items.count; which += static_cast<int>(gridDim.z)) {
    const AttentionItem& item = items.items[which];
    if (blockIdx.x >= item.queries) continue;
    const int64_t row = item.query_row + blockIdx.x;
    const int64_t end = item.length - item.queries + blockIdx.x + 1;
    const int64_t begin = args.window > 0 && args.window < end ? end - args.window : 0;
    const Softmax<kDims> softmax = AttendRange<kDims, Kv>(args, row, item.first_page, begin, end);
    if (threadIdx.y != 0) continue;
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      if (d + i >= args.head_dim) break;
      // Scores of -inf everywhere have no softmax: zero.
      const float value = softmax.sum == 0.0f ? 0.0f : softmax.values[i] / softmax.sum;
      const int64_t head = static_cast<int64_t>(blockIdx.y) * args.head_dim;
      StoreFloat(value, out.dtype, out.data, row * out.stride + head + d + i);
    }
  }
}

}  // namespace

cudaError_t LaunchPlainAttention(const AttentionArgs& args, const AttentionItem* items, int item_count,
                                 int64_t most_queries, const CudaMatrix& out, cudaStream_t stream) {
  if (item_count == 0 || most_queries == 0) return cudaSuccess;
  constexpr int kMostInZ = 65535;
  const dim3 grid(static_cast<unsigned>(most_queries), static_cast<unsigned>(args.heads),
                  static_cast<unsigned>(item_count < kMostInZ ? item_count : kMostInZ));
  return ForHeads(args, [&]<int kDims, typename Kv>() {
    return Launch(PlainAttentionKernel<kDims, Kv>, grid, dim3(kWarpSize, kAttentionWarps), stream, args,
                  Items{items, item_count}, out);
  });
}

}  // namespace runahead
