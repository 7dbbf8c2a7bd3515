#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

// A block takes one query of one head. Its warps take tiles of positions in turn: warp w the tiles w, w + kWarps, ...;
// the lanes of a warp share the head's dimensions. So what is added to what depends on positions only.
constexpr int kWarps = 4;

// Walks over the spans of a sequence; positions only rise.
template <typename Kv>
struct SpanCursor {
  const AttentionSpan* span;
  int64_t row_elements;

  __device__ const Kv* At(int64_t position) {
    while (position >= span->first + span->tokens) ++span;
    return reinterpret_cast<const Kv*>(span->rows) + (position - span->first) * row_elements;
  }
};

// The softmax so far of one warp: sum of exp(score - max), and of that times V for the lane's dimensions.
template <int kDims>
struct Partial {
  float max = ExpSum::kFloor;
  float sum = 0.0f;
  float values[kDims] = {};
};

struct HeadShape {
  int64_t head_dim;
  int64_t v_offset;  // elements from the K of a head to its V
  float scale;
};

// Takes the positions first .. first + count in, count <= kTile.
template <int kDims, int kTile, typename Kv>
__device__ void AttendTile(const HeadShape& shape, SpanCursor<Kv>& cursor, int64_t head_offset, int64_t first,
                           int count, const float (&query)[kDims], Partial<kDims>& partial) {
  const int64_t d = static_cast<int64_t>(threadIdx.x) * kDims;
  const Kv* rows[kTile];
  float scores[kTile];
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    rows[j] = j < count ? cursor.At(first + j) + head_offset + d : nullptr;
    float key[kDims];
    LoadFloats<kDims>(rows[j], j < count ? shape.head_dim - d : 0, IsPacked<Kv, kDims>(rows[j]), key);
    scores[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < kDims; ++i) scores[j] += query[i] * key[i];
  }
  float max = partial.max;
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    scores[j] = WarpReduce(scores[j], Add()) * shape.scale;
    if (j < count) max = scores[j] > max ? scores[j] : max;
  }
  const float shrink = expf(partial.max - max);
  partial.max = max;
  partial.sum *= shrink;
#pragma unroll
  for (int i = 0; i < kDims; ++i) partial.values[i] *= shrink;
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    const float weight = j < count ? expf(scores[j] - max) : 0.0f;
    const Kv* row = j < count ? rows[j] + shape.v_offset : nullptr;
    float value[kDims];
    LoadFloats<kDims>(row, j < count ? shape.head_dim - d : 0, IsPacked<Kv, kDims>(row), value);
    partial.sum += weight;
#pragma unroll
    for (int i = 0; i < kDims; ++i) partial.values[i] += weight * value[i];
  }
}

// Joins the warps' partial results, always in the same order; thread (x, 0) ends up with the block's.
template <int kDims>
__device__ void JoinWarps(Partial<kDims>& partial) {
  __shared__ float maxima[kWarps];
  __shared__ float sums[kWarps];
  __shared__ float values[kWarps][kWarpSize * kDims];
  __syncthreads();  // what an earlier item left has been read
  if (threadIdx.x == 0) {
    maxima[threadIdx.y] = partial.max;
    sums[threadIdx.y] = partial.sum;
  }
#pragma unroll
  for (int i = 0; i < kDims; ++i) values[threadIdx.y][i * kWarpSize + threadIdx.x] = partial.values[i];
  __syncthreads();
  if (threadIdx.y != 0) return;
  float max = partial.max;
  for (int warp = 1; warp < kWarps; ++warp) max = maxima[warp] > max ? maxima[warp] : max;
  partial = Partial<kDims>();
  for (int warp = 0; warp < kWarps; ++warp) {
    const float share = expf(maxima[warp] - max);
    partial.sum += share * sums[warp];
#pragma unroll
    for (int i = 0; i < kDims; ++i) partial.values[i] += share * values[warp][i * kWarpSize + threadIdx.x];
  }
}

// Grid: query of an item, head, item.
template <int kDims, typename Kv>
__global__ void __launch_bounds__(kWarps* kWarpSize) PlainAttentionKernel(PlainAttentionArgs args) {
  constexpr int kTile = 32 / kDims;  // positions whose K and V a warp has under way
  const int64_t kv_dim = static_cast<int64_t>(args.kv_heads) * args.head_dim;
  const int64_t head = blockIdx.y;
  const int64_t d = static_cast<int64_t>(threadIdx.x) * kDims;
  const int64_t head_offset = head / (args.heads / args.kv_heads) * args.head_dim;
  const HeadShape shape = {.head_dim = args.head_dim, .v_offset = kv_dim, .scale = args.scale};
  for (int which = static_cast<int>(blockIdx.z); which < args.item_count; which += static_cast<int>(gridDim.z)) {
    const AttentionItem& item = args.items[which];
    if (blockIdx.x >= item.queries) continue;
    const int64_t row = item.query_row + blockIdx.x;
    const int64_t seen = item.length - item.queries + blockIdx.x + 1;
    float query[kDims];
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const int64_t at = row * args.q.stride + head * args.head_dim + d + i;
      query[i] = d + i < args.head_dim ? LoadFloat(args.q.dtype, args.q.data, at) : 0.0f;
    }
    SpanCursor<Kv> cursor = {args.spans + item.first_span, 2 * kv_dim};
    Partial<kDims> partial;
    for (int64_t first = kTile * threadIdx.y; first < seen; first += kTile * kWarps) {
      const int count = static_cast<int>(seen - first < kTile ? seen - first : kTile);
      AttendTile<kDims, kTile>(shape, cursor, head_offset, first, count, query, partial);
    }
    JoinWarps(partial);
    if (threadIdx.y != 0) continue;
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      if (d + i >= args.head_dim) break;
      // Scores of -inf everywhere have no softmax: zero.
      const float value = partial.sum == 0.0f ? 0.0f : partial.values[i] / partial.sum;
      StoreFloat(value, args.out.dtype, args.out.data, row * args.out.stride + head * args.head_dim + d + i);
    }
  }
}

template <typename Kv>
void (*KernelOf(int head_dim))(PlainAttentionArgs) {
  if (head_dim <= 2 * kWarpSize) return PlainAttentionKernel<2, Kv>;
  if (head_dim <= 4 * kWarpSize) return PlainAttentionKernel<4, Kv>;
  return PlainAttentionKernel<8, Kv>;
}

}  // namespace

cudaError_t LaunchPlainAttention(const PlainAttentionArgs& args, cudaStream_t stream) {
  if (args.item_count == 0 || args.most_queries == 0) return cudaSuccess;
  constexpr int kMostInZ = 65535;
  const dim3 grid(static_cast<unsigned>(args.most_queries), static_cast<unsigned>(args.heads),
                  static_cast<unsigned>(args.item_count < kMostInZ ? args.item_count : kMostInZ));
  return ForDType(args.kv_dtype, [&]<typename Kv>(Kv*) {
    return Launch(KernelOf<Kv>(args.head_dim), grid, dim3(kWarpSize, kWarps), stream, args);
  });
}

}  // namespace runahead
