// Plain kernels in the place of FlashInfer's, behind kernels/cuda/flash_kernels.h: the same arrays in, the same results
// out, so that what plans, launches and merges is tested without a GPU.
#include <atomic>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/flash_kernels.h"
#include "kernels/cuda/launch.h"
#include "tests/testing/cuda_emulation/plain_flash.h"

namespace runahead {
namespace {

std::atomic<int64_t> flash_pieces = 0;

// The weighted mean of V so far, as it is on tensor cores: relative to the largest score yet.
struct Softmax {
  float max = -INFINITY;
  float weights = 0.0f;
  float sums[256] = {};

  template <typename T>
  __device__ void Add(float score, const T* v, int head_dim) {
    const float new_max = fmaxf(max, score);
    const float rescale = exp2f(max - new_max), weight = exp2f(score - new_max);
    max = new_max;
    weights = weights * rescale + weight;
    for (int d = 0; d < head_dim; ++d) sums[d] = sums[d] * rescale + weight * LoadFloat(v + d);
  }
};

template <typename T>
__device__ float Score(const T* q, const T* k, int head_dim, float scale) {
  float sum = 0.0f;
  for (int d = 0; d < head_dim; ++d) sum = fmaf(LoadFloat(q + d), LoadFloat(k + d), sum);
  return sum * scale * 1.44269504f;  // of exp2
}

// A thread for each query and head.
template <typename T>
__global__ void PlainPrefill(FlashPrefillArgs args) {
  const int64_t query = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), head_dim = args.head_dim;
  const T* q = Rows<T>(args.q).at(query) + head * head_dim;
  const T* kv = reinterpret_cast<const T*>(args.kv) + head / (args.heads / args.kv_heads) * head_dim;
  const int64_t values = static_cast<int64_t>(args.kv_heads) * head_dim;
  const int64_t positions = args.dense_length > 0 ? args.dense_length : args.length;
  Softmax softmax;
  for (int64_t p = 0; p < positions; ++p) {
    const int64_t position = args.length - args.q.rows + query;
    const bool seen = p <= position;
    if (!seen && args.dense_length == 0) break;
    if (args.window > 0 && p <= position - args.window) continue;
    softmax.Add(seen ? Score(q, kv + p * 2 * values, head_dim, args.scale) : -5e4f, kv + p * 2 * values + values,
                head_dim);
  }
  T* out = Rows<T>(args.out).at(query) + head * head_dim;
  for (int d = 0; d < head_dim; ++d) StoreFloat(softmax.sums[d] / softmax.weights, out + d);
}

// Query `i` of a run, one of its heads.
template <typename T>
__device__ void AttendPiece(const FlashPiecesArgs& of, const PieceRun& run, int32_t i, int head) {
  const AttentionArgs& args = of.attention;
  const int32_t number = run.first + i * run.step;
  const AttentionPiece piece = of.work.pieces[number];
  if (piece.tokens == 0) return;
  const int head_dim = args.head_dim;
  float* const partial = Rows<float>(of.partials).at(number);
  float& log = partial[args.heads * head_dim + head];
  const int64_t hidden = args.window > 0 ? piece.left - args.window : 0;
  if (hidden >= piece.tokens) {
    log = -INFINITY;
    return;
  }
  flash_pieces.fetch_add(1, std::memory_order_relaxed);
  const T* q = Rows<T>(args.q).at(piece.query_row) + head * head_dim;
  const int64_t values = static_cast<int64_t>(args.kv_heads) * head_dim;
  Softmax softmax;
  for (int64_t token = hidden > 0 ? hidden : 0; token < piece.tokens; ++token) {
    const int64_t page = args.pages[piece.first_page + token / args.page_tokens];
    const T* k = reinterpret_cast<const T*>(args.layer) +
                 (page * args.page_tokens + token % args.page_tokens) * 2 * values +
                 head / (args.heads / args.kv_heads) * head_dim;
    softmax.Add(Score(q, k, head_dim, args.scale), k + values, head_dim);
  }
  // As FlashInfer's writes: outputs, by two floats at a time, and logarithms to their places, or through memory of its
  // own.
  const bool direct = run.count == 1 && reinterpret_cast<uintptr_t>(partial) % (2 * sizeof(float)) == 0;
  const int64_t room = of.work.count * of.work.most_queries, at = blockIdx.x * of.work.most_queries + i;
  float* const outputs = direct ? partial : of.workspace + at * args.heads * head_dim;
  float* const logs = run.count == 1 ? &log : of.workspace + room * args.heads * head_dim + at * args.heads + head;
  for (int d = 0; d < head_dim; ++d) outputs[head * head_dim + d] = softmax.sums[d] / softmax.weights;
  *logs = softmax.max + log2f(softmax.weights);
  for (int d = 0; d < head_dim; ++d) partial[head * head_dim + d] = outputs[head * head_dim + d];
  log = *logs;
}

// A thread for each run and head.
template <typename T>
__global__ void PlainPieces(FlashPiecesArgs of) {
  const PieceRun run = of.work.runs[blockIdx.x];
  if (run.first < 0) return;
  for (int32_t i = 0; i < run.count; ++i) AttendPiece<T>(of, run, i, static_cast<int>(blockIdx.y));
}

}  // namespace

int64_t PlainFlashPieces() {
  return flash_pieces;
}

cudaError_t LaunchPrefillAnyGpu(const FlashPrefillArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.q.rows), static_cast<unsigned>(args.heads));
  return ForDType(args.q.dtype, [&](auto* element) {
    return Launch(&PlainPrefill<std::remove_pointer_t<decltype(element)>>, grid, dim3(1), stream, args);
  });
}

cudaError_t LaunchPrefillWindow(const FlashPrefillArgs& args, cudaStream_t stream) {
  return args.window > 0 ? LaunchPrefillAnyGpu(args, stream) : cudaErrorInvalidValue;
}

cudaError_t LaunchPrefillHopperBf16Dim64(const FlashPrefillArgs& args, cudaStream_t stream) {
  return LaunchPrefillAnyGpu(args, stream);
}
cudaError_t LaunchPrefillHopperBf16Dim128(const FlashPrefillArgs& args, cudaStream_t stream) {
  return LaunchPrefillAnyGpu(args, stream);
}
cudaError_t LaunchPrefillHopperBf16Dim128Dense(const FlashPrefillArgs& args, cudaStream_t stream) {
  return LaunchPrefillAnyGpu(args, stream);
}
cudaError_t LaunchPrefillHopperF16Dim128(const FlashPrefillArgs& args, cudaStream_t stream) {
  return LaunchPrefillAnyGpu(args, stream);
}

cudaError_t LaunchDecodePieces(const FlashPiecesArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.work.count), static_cast<unsigned>(args.attention.heads));
  return ForDType(args.attention.q.dtype, [&](auto* element) {
    return Launch(&PlainPieces<std::remove_pointer_t<decltype(element)>>, grid, dim3(1), stream, args);
  });
}

}  // namespace runahead
