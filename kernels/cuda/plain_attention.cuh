// Attention of one query of one head by a block of threads, in plain arithmetic: what the plain kernels have in common.
#pragma once

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {

// Its warps take tiles of positions in turn: warp w the tiles w, w + kAttentionWarps, ...; the lanes of a warp share
// the head's dimensions. Tiles that a window hides are left out, and the part of one that it hides weighs nothing. So
// what is added to what depends on positions only.
inline constexpr int kAttentionWarps = 4;

// KV rows by pages, at positions counted from where the first page begins.
template <typename Kv>
struct PagedRows {
  const Kv* layer;
  const int64_t* pages;
  int page_bits;  // of a position: its place in its page
  int64_t row_elements;

  __device__ const Kv* At(int64_t position) const {
    const int64_t page = pages[position >> page_bits];
    const int64_t place = position & ((int64_t{1} << page_bits) - 1);
    return layer + ((page << page_bits) + place) * row_elements;
  }
};

// The softmax so far of one warp: sum of exp(score - max), and of that times V for the lane's dimensions.
template <int kDims>
struct Softmax {
  float max = ExpSum::kFloor;
  float sum = 0.0f;
  float values[kDims] = {};
};

struct HeadShape {
  int64_t head_dim;
  int64_t v_offset;  // elements from the K of a head to its V
  float scale;
  float soft_cap;
};

// Takes the positions first + skip .. first + count in, 0 <= skip < count <= kTile.
template <int kDims, int kTile, typename Kv>
__device__ void AttendTile(const HeadShape& shape, const PagedRows<Kv>& kv, int64_t head_offset, int64_t first,
                           int skip, int count, const float (&query)[kDims], Softmax<kDims>& softmax) {
  const auto seen = [&](int j) { return j >= skip && j < count; };
  const int64_t d = static_cast<int64_t>(threadIdx.x) * kDims;
  const Kv* rows[kTile];
  float scores[kTile];
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    rows[j] = seen(j) ? kv.At(first + j) + head_offset + d : nullptr;
    float key[kDims];
    LoadFloats<kDims>(rows[j], seen(j) ? shape.head_dim - d : 0, IsPacked<Kv, kDims>(rows[j]), key);
    scores[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < kDims; ++i) scores[j] += query[i] * key[i];
  }
  float max = softmax.max;
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    scores[j] = WarpReduce(scores[j], Add()) * shape.scale;
    if (shape.soft_cap > 0.0f) scores[j] = shape.soft_cap * tanhf(scores[j] / shape.soft_cap);
    if (seen(j)) max = scores[j] > max ? scores[j] : max;
  }
  const float shrink = expf(softmax.max - max);
  softmax.max = max;
  softmax.sum *= shrink;
#pragma unroll
  for (int i = 0; i < kDims; ++i) softmax.values[i] *= shrink;
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    const float weight = seen(j) ? expf(scores[j] - max) : 0.0f;
    const Kv* row = seen(j) ? rows[j] + shape.v_offset : nullptr;
    float value[kDims];
    LoadFloats<kDims>(row, seen(j) ? shape.head_dim - d : 0, IsPacked<Kv, kDims>(row), value);
    softmax.sum += weight;
#pragma unroll
    for (int i = 0; i < kDims; ++i) softmax.values[i] += weight * value[i];
  }
}

// Joins what the warps have, always in the same order; thread (x, 0) ends up with the block's.
template <int kDims>
__device__ void JoinWarps(Softmax<kDims>& softmax) {
  __shared__ float maxima[kAttentionWarps];
  __shared__ float sums[kAttentionWarps];
  __shared__ float values[kAttentionWarps][kWarpSize * kDims];
  __syncthreads();  // what an earlier item left has been read
  if (threadIdx.x == 0) {
    maxima[threadIdx.y] = softmax.max;
    sums[threadIdx.y] = softmax.sum;
  }
#pragma unroll
  for (int i = 0; i < kDims; ++i) values[threadIdx.y][i * kWarpSize + threadIdx.x] = softmax.values[i];
  __syncthreads();
  if (threadIdx.y != 0) return;
  float max = softmax.max;
  for (int warp = 1; warp < kAttentionWarps; ++warp) max = maxima[warp] > max ? maxima[warp] : max;
  softmax = Softmax<kDims>();
  softmax.max = max;
  for (int warp = 0; warp < kAttentionWarps; ++warp) {
    const float share = expf(maxima[warp] - max);
    softmax.sum += share * sums[warp];
#pragma unroll
    for (int i = 0; i < kDims; ++i) softmax.values[i] += share * values[warp][i * kWarpSize + threadIdx.x];
  }
}

// Row `query_row` of q over the positions [begin, end) of `pages`, for head blockIdx.y. In threads (x, 0): the result.
template <int kDims, typename Kv>
__device__ Softmax<kDims> AttendRange(const AttentionArgs& args, int64_t query_row, int64_t first_page, int64_t begin,
                                      int64_t end) {
  constexpr int kTile = 32 / kDims;  // positions whose K and V a warp has under way
  constexpr int64_t kStep = kTile * kAttentionWarps;
  const int64_t kv_dim = static_cast<int64_t>(args.kv_heads) * args.head_dim;
  const int64_t head = blockIdx.y;
  const int64_t d = static_cast<int64_t>(threadIdx.x) * kDims;
  const int64_t head_offset = head / (args.heads / args.kv_heads) * args.head_dim;
  const HeadShape shape = {
      .head_dim = args.head_dim, .v_offset = kv_dim, .scale = args.scale, .soft_cap = args.soft_cap};
  const PagedRows<Kv> kv = {.layer = reinterpret_cast<const Kv*>(args.layer),
                            .pages = args.pages + first_page,
                            .page_bits = __ffs(args.page_tokens) - 1,
                            .row_elements = 2 * kv_dim};
  float query[kDims];
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    const int64_t at = query_row * args.q.stride + head * args.head_dim + d + i;
    query[i] = d + i < args.head_dim ? LoadFloat(args.q.dtype, args.q.data, at) : 0.0f;
  }
  Softmax<kDims> softmax;
  for (int64_t first = begin / kStep * kStep + kTile * threadIdx.y; first < end; first += kStep) {
    if (first + kTile <= begin) continue;
    const int skip = static_cast<int>(first < begin ? begin - first : 0);
    const int count = static_cast<int>(end - first < kTile ? end - first : kTile);
    AttendTile<kDims, kTile>(shape, kv, head_offset, first, skip, count, query, softmax);
  }
  JoinWarps(softmax);
  return softmax;
}

// Calls function.operator()<dimensions of a lane, KV's element type>().
template <typename Function>
cudaError_t ForHeads(const AttentionArgs& args, const Function& function) {
  return ForDType(args.kv_dtype, [&]<typename Kv>(Kv*) {
    if (args.head_dim <= 2 * kWarpSize) return function.template operator()<2, Kv>();
    if (args.head_dim <= 4 * kWarpSize) return function.template operator()<4, Kv>();
    return function.template operator()<8, Kv>();
  });
}

}  // namespace runahead
