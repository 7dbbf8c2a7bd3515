// What stands for FlashInfer's kernels where CUDA is emulated: the same arrays read in the same way, one thread for each
// query and head.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kMostHeadDim = 256;

// Softmax sums over some KV rows.
struct Sums {
  float top = -INFINITY;
  float total = 0;
  float values[kMostHeadDim] = {};
};

// A KV head of a row of KV.
struct Head {
  int kv_head, kv_heads, head_dim;
  DType dtype;
};

__device__ void Take(Sums& sums, float score, const float* values, int dim) {
  const float top = fmaxf(sums.top, score);
  const float old = sums.top == -INFINITY ? 0.0f : expf(sums.top - top), share = expf(score - top);
  sums.total = sums.total * old + share;
  for (int d = 0; d < dim; ++d) sums.values[d] = sums.values[d] * old + share * values[d];
  sums.top = top;
}

__device__ void TakeRow(Sums& sums, const float* q, const std::byte* row, const Head& head, float scale) {
  float values[kMostHeadDim];
  float score = 0;
  for (int d = 0; d < head.head_dim; ++d) {
    score += q[d] * LoadFloat(head.dtype, row, head.kv_head * head.head_dim + d);
    values[d] = LoadFloat(head.dtype, row, (head.kv_heads + head.kv_head) * head.head_dim + d);
  }
  Take(sums, score * scale, values, head.head_dim);
}

__device__ void LoadQuery(const CudaMatrix& q, int64_t row, int head, int dim, float* to) {
  for (int d = 0; d < dim; ++d) to[d] = LoadFloat(q.dtype, q.data, row * q.stride + head * dim + d);
}

__device__ void StoreOut(const Sums& sums, const CudaMatrix& out, int64_t row, int head, int dim) {
  for (int d = 0; d < dim; ++d) {
    StoreFloat(sums.values[d] / sums.total, out.dtype, out.data, row * out.stride + head * dim + d);
  }
}

__global__ void PlainPrefill(FlashPrefillArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= args.q.rows * args.heads) return;
  const int64_t row = index / args.heads;
  const int head = static_cast<int>(index % args.heads), group = args.heads / args.kv_heads;
  const Head kv{head / group, args.kv_heads, args.head_dim, args.kv_dtype};
  const int64_t row_bytes = 4 * static_cast<int64_t>(args.kv_heads) * args.head_dim;
  float q[kMostHeadDim];
  LoadQuery(args.q, row, head, args.head_dim, q);
  Sums sums;
  for (int64_t t = 0; t <= args.length - args.q.rows + row; ++t) TakeRow(sums, q, args.kv + t * row_bytes, kv, args.scale);
  StoreOut(sums, args.out, row, head, args.head_dim);
}

__global__ void PlainDecode(FlashDecodeArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= args.row_count * args.heads) return;
  const FlashDecodeRow row = args.rows[index / args.heads];
  const int head = static_cast<int>(index % args.heads), group = args.heads / args.kv_heads, dim = args.head_dim;
  const Head kv{head / group, args.kv_heads, dim, args.kv_dtype};
  const int64_t row_bytes = 4 * static_cast<int64_t>(args.kv_heads) * dim;
  float q[kMostHeadDim];
  LoadQuery(args.q, row.query_row, head, dim, q);
  Sums all;
  for (int p = 0; p < row.pieces; ++p) {
    const FlashDecodePiece piece = args.pieces[row.first_piece + p];
    if (piece.tokens == 0) continue;
    Sums sums;
    for (int t = 0; t < piece.tokens; ++t) {
      const int64_t page = args.pages[piece.first_page + t / args.page_tokens] * kFlashAlignment;
      TakeRow(sums, q, reinterpret_cast<const std::byte*>(page) + t % args.page_tokens * row_bytes, kv, args.scale);
    }
    const float top = fmaxf(all.top, sums.top);
    const float old = all.top == -INFINITY ? 0.0f : expf(all.top - top), share = expf(sums.top - top);
    all.total = all.total * old + sums.total * share;
    for (int d = 0; d < dim; ++d) all.values[d] = all.values[d] * old + sums.values[d] * share;
    all.top = top;
  }
  StoreOut(all, args.out, row.query_row, head, dim);
}

template <typename Args>
cudaError_t LaunchThreads(void (*kernel)(Args), int64_t threads, const Args& args, cudaStream_t stream) {
  return Launch(kernel, dim3(static_cast<unsigned>((threads + 63) / 64)), dim3(64), stream, args);
}

}  // namespace

cudaError_t LaunchFlashPrefill(const FlashPrefillArgs& args, cudaStream_t stream) {
  if (!FlashPrefillTakes(args)) return cudaErrorInvalidValue;
  return LaunchThreads(PlainPrefill, args.q.rows * args.heads, args, stream);
}

cudaError_t LaunchFlashDecode(const FlashDecodeArgs& args, cudaStream_t stream) {
  return LaunchThreads(PlainDecode, args.row_count * args.heads, args, stream);
}

}  // namespace runahead
