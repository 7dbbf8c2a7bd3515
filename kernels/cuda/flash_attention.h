// Attention by the kernels of FlashInfer. What they take they compute like LaunchPlainAttention of kernels.h, on tensor
// cores; what they do not take, that does. Pointers are to memory that the GPU reaches; nothing is allocated and
// nothing waits. Products of a query with a key, before they are scaled, must be above -5e4: the kernels take less for
// masked.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cuda/kernels.h"

namespace runahead {

inline constexpr int64_t kFlashAlignment = 16;  // bytes: of the kernels' loads

// One sequence of a KvTable, whose KV rows are consecutive: query i (row i of q, and of out) is at
// position length - queries + i and sees KV rows 0..position, or the window's last of them. No row behind `length` (or
// dense_length) is read.
struct FlashPrefillArgs {
  CudaMatrix q;    // [queries, heads*head_dim]
  CudaMatrix out;  // the same shape and dtype, rows without gaps between them
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  DType kv_dtype = DType::kF32;
  float scale = 1.0f;
  const std::byte* kv = nullptr;  // [tokens][K|V][kv_heads*head_dim]
  int64_t length = 0;
  // 0, or at least `length`: all tiles of KV rows 0..dense_length-1 are multiplied, and what a query must not see is
  // masked afterwards. Rows from `length` on must exist, and any number of them have finite sums.
  int64_t dense_length = 0;
  int64_t window = 0;  // 0: all; not with dense_length
};

// What both take, whatever the pointers and lengths.
inline bool FlashTakes(int head_dim, DType q, DType kv, DType out) {
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) && (q == DType::kBF16 || q == DType::kF16) && kv == q &&
         out == q;
}

inline bool IsFlashAligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % kFlashAlignment == 0;
}

// Rows of 2-byte elements, all of them aligned.
inline bool IsFlashMatrix(const CudaMatrix& matrix) {
  return IsFlashAligned(matrix.data) && matrix.stride * 2 % kFlashAlignment == 0 && matrix.stride >= matrix.cols;
}

// Queries of one launch: its kernel counts elements of q and out in 31 bits. With a window it also goes over all that
// any of its queries sees for each of them; these launches are enough for a large GPU, and go over a quarter more than
// needed where the window is long.
inline int64_t MostFlashQueries(const FlashPrefillArgs& args) {
  constexpr int64_t kMostElements = (int64_t{1} << 31) - 1;
  constexpr int64_t kWindowQueries = 1024;
  const int64_t most = kMostElements / std::max<int64_t>({args.q.stride, args.out.stride, 1});
  return args.window == 0 ? most : std::min(most, std::max(kWindowQueries, args.window / 4));
}

// Launches of at most so many queries each. A query sees what it saw: KV ends as much earlier for a launch as queries
// follow it, and begins where the window of its first query does.
inline std::vector<FlashPrefillArgs> FlashPrefillParts(const FlashPrefillArgs& args, int64_t most_queries) {
  std::vector<FlashPrefillArgs> parts;
  for (int64_t first = 0; first < args.q.rows; first += most_queries) {
    FlashPrefillArgs& part = parts.emplace_back(args);
    part.q.rows = part.out.rows = std::min(most_queries, args.q.rows - first);
    part.length -= args.q.rows - first - part.q.rows;
    for (CudaMatrix* const matrix : {&part.q, &part.out}) {
      matrix->data = static_cast<std::byte*>(matrix->data) + first * matrix->stride * DTypeSize(matrix->dtype);
    }
    if (const int64_t hidden = part.length - part.q.rows + 1 - part.window; part.window > 0 && hidden > 0) {
      part.kv += hidden * 2 * part.kv_heads * part.head_dim * static_cast<int64_t>(DTypeSize(part.kv_dtype));
      part.length -= hidden;
    }
  }
  return parts;
}

inline bool FlashPrefillTakes(const FlashPrefillArgs& args) {
  // The kernels count rows of KV in 32 bits.
  constexpr int64_t kMostTokens = int64_t{1} << 30;
  return FlashTakes(args.head_dim, args.q.dtype, args.kv_dtype, args.out.dtype) && args.kv_heads > 0 &&
         args.heads % args.kv_heads == 0 && args.kv_heads < 65536 && args.heads < 65536 &&
         args.out.cols == int64_t{args.heads} * args.head_dim && IsFlashMatrix(args.q) && IsFlashMatrix(args.out) &&
         args.out.stride == args.out.cols && MostFlashQueries(args) > 0 && args.q.rows > 0 &&
         args.q.rows <= args.length && args.length < kMostTokens && args.dense_length < kMostTokens &&
         (args.window == 0 || (args.window > 0 && args.dense_length == 0)) && IsFlashAligned(args.kv);
}

// A function of the shape and of where a layer begins: every sequence gets the same kernel.
inline bool FlashPiecesTake(const AttentionArgs& args) {
  return FlashTakes(args.head_dim, args.q.dtype, args.kv_dtype, args.q.dtype) && args.kv_heads > 0 &&
         args.heads % args.kv_heads == 0 && args.soft_cap == 0 && IsFlashMatrix(args.q) && IsFlashAligned(args.layer);
}

// Device memory that a launch needs besides. The kernels write outputs by two floats, which rows of an odd number of
// floats do not allow: those pass through here. So do outputs and logarithms of several queries, which the kernels
// write one behind the other.
inline size_t FlashPiecesWorkspaceBytes(const AttentionArgs& args, const AttentionWork& work,
                                        const CudaMatrix& partials) {
  const int64_t heads = work.count * work.most_queries * args.heads;
  if (work.most_queries > 1) return static_cast<size_t>(heads * (args.head_dim + 1)) * sizeof(float);
  const bool direct = reinterpret_cast<uintptr_t>(partials.data) % 8 == 0 && partials.stride % 2 == 0;
  return direct ? 0 : static_cast<size_t>(heads * args.head_dim) * sizeof(float);
}

// As many launches as MostFlashQueries asks for. cudaErrorInvalidValue for what FlashPrefillTakes refuses. Chooses
// among the kernels by the current device.
cudaError_t LaunchFlashPrefill(const FlashPrefillArgs& args, cudaStream_t stream);

// LaunchPlainPieces of kernels.h on tensor cores. A piece is bitwise the same, whatever is beside it in the batch and
// in its run, and wherever it lies. The work's count and most_queries and page_tokens are part of the launch; what the
// arrays hold is not: a recorded launch reads what they hold when it runs. cudaErrorInvalidValue for what
// FlashPiecesTake refuses.
cudaError_t LaunchFlashPieces(const AttentionArgs& args, const AttentionWork& work, const CudaMatrix& partials,
                              std::byte* workspace, cudaStream_t stream);

}  // namespace runahead
