// The launches of our own kernels. Pointers are to memory that the GPU reaches (device, or pinned host), shapes stand
// beside them; nothing is allocated and nothing waits. They return the code of the launch. Element types are f32, bf16
// and f16 where a comment does not say less; arithmetic is in f32. Nothing is launched for zero rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/base/dtype.h"
#include "kernels/base/op_params.h"
#include "kernels/base/weight_type.h"
#include "kernels/cuda/kv_arrays.h"

namespace runahead {

// [rows, cols] elements of `dtype`, rows `stride` elements apart.
struct CudaMatrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
};

// out[t] = table[ids[t]], added to what is there where `accumulate`.
cudaError_t LaunchEmbed(const CudaMatrix& table, const int32_t* ids, bool accumulate, const CudaMatrix& out,
                        cudaStream_t stream);

// out[t,d] = x[t,d] * weight[d] / sqrt(mean_d(x[t,d]^2) + eps).  x: f32; weight: [cols].
cudaError_t LaunchRmsNorm(const CudaMatrix& x, const float* weight, float eps, const CudaMatrix& out,
                          cudaStream_t stream);

// Each head (every head_dim columns) of each row in place: as LaunchRmsNorm does a row.  x: f32; weight: [head_dim].
cudaError_t LaunchHeadNorm(const CudaMatrix& x, int head_dim, const float* weight, float eps, cudaStream_t stream);

// Rotates the first table.cols (even) elements of each head of x in place, row t by table's row positions[t]
// (f32: cosines, then sines). Pairs are (i, i + table.cols/2), or interleaved (2i, 2i + 1).
cudaError_t LaunchRope(const CudaMatrix& x, int head_dim, const CudaMatrix& table, bool interleaved,
                       const int32_t* positions, cudaStream_t stream);

// The first q.cols columns of row t of qkv (f32; none where q has no memory) go to q, the others, K and V, in kv_dtype
// to row kv_rows[t] of such rows behind `layer`.
cudaError_t LaunchStoreQkv(const CudaMatrix& qkv, const CudaMatrix& q, std::byte* layer, const int64_t* kv_rows,
                           DType kv_dtype, cudaStream_t stream);

// out[t,f] = activation(gate_up[t,f]) * gate_up[t,F+f], F = out.cols.
cudaError_t LaunchGatedActivate(const CudaMatrix& gate_up, Activation activation, const CudaMatrix& out,
                                cudaStream_t stream);

// The k (1..kMostTopK, at most cols) largest of each row of logits (f32), falling, ties to the smaller id, and
// log(sum_v exp(logits[t,v])). ids: int32 in a matrix of four-byte elements [t, k]; values: f32 [t, k]; log_sum: f32
// [t, 1]. Rows with NaN: log_sum is NaN, ids stay inside the row.
cudaError_t LaunchTopK(const CudaMatrix& logits, int k, const CudaMatrix& ids, const CudaMatrix& values,
                       const CudaMatrix& log_sum, cudaStream_t stream);

// out [rows, cols] from rows stored as `type` (weight_type.h), dense from `stored`. cols: a multiple of 32 for the Q
// types.
cudaError_t LaunchDequantize(WeightType type, const std::byte* stored, const CudaMatrix& out, cudaStream_t stream);

// Queries, and where in a layer the KV that they see lies: row r of page p of the arrays below is KV row
// pages[p] * page_tokens + r behind `layer`, [K|V][kv_heads*head_dim].
struct AttentionArgs {
  CudaMatrix q;  // [t, heads*head_dim]
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  DType kv_dtype = DType::kF32;
  float scale = 1.0f;
  int64_t window = 0;  // as in AttentionShape
  float soft_cap = 0;
  const std::byte* layer = nullptr;
  const int64_t* pages = nullptr;
  int32_t page_tokens = 1;  // a power of two
};
// The plain attention kernels: any head_dim up to 256, any dtypes, any pages; what faster ones are compared with and
// what runs where they do not. The order in which a query's sums are taken depends on its position and the window only.

// Device::Attention of items[0..item_count); `most_queries`: of any item. out: [t, heads*head_dim].
cudaError_t LaunchPlainAttention(const AttentionArgs& args, const AttentionItem* items, int item_count,
                                 int64_t most_queries, const CudaMatrix& out, cudaStream_t stream);
// Device::AttendPieces: row p of partials (f32 [heads][head_dim], then [heads] logarithms) from piece p, of those in
// the work's runs.
cudaError_t LaunchPlainPieces(const AttentionArgs& args, const AttentionWork& work, const CudaMatrix& partials,
                              cudaStream_t stream);
// Device::MergePieces: out[t], [heads*head_dim], from the partials of ranges[t], in their order.
cudaError_t LaunchMergePieces(const CudaMatrix& partials, const PieceRange* ranges, int heads, const CudaMatrix& out,
                              cudaStream_t stream);

// out[t,d] = (x[t,d] - mean(x[t])) / sqrt(var(x[t]) + eps) * weight[d] + bias[d].  x: f32; weight, bias: [cols].
cudaError_t LaunchLayerNorm(const CudaMatrix& x, const float* weight, const float* bias, float eps,
                            const CudaMatrix& out, cudaStream_t stream);

// out[t,f] = activation(x[t,f]); out may be x.
cudaError_t LaunchActivate(const CudaMatrix& x, Activation activation, const CudaMatrix& out, cudaStream_t stream);
// out[t,n] = activation(x[t,n] + bias[n]): what Linear does last where cuBLASLt does not. bias: [cols], or null;
// out may be x.
cudaError_t LaunchBias(const CudaMatrix& x, const float* bias, std::optional<Activation> activation,
                       const CudaMatrix& out, cudaStream_t stream);

// out[t,d] = factor * x[t,d], added to what is there where `accumulate`.  x, out: f32; out may be x.
cudaError_t LaunchScale(const CudaMatrix& x, float factor, bool accumulate, const CudaMatrix& out, cudaStream_t stream);
// x[t,d] = cap * tanh(x[t,d] / cap).  x: f32.
cudaError_t LaunchSoftCap(const CudaMatrix& x, float cap, cudaStream_t stream);

// out[i] = x[rows[i]], as many as out has. rows: in device memory. x and out: of one dtype and as many columns, in
// memory apart.
cudaError_t LaunchGatherRows(const CudaMatrix& x, const int32_t* rows, const CudaMatrix& out, cudaStream_t stream);

// out[rows[i].to] = x[rows[i].from] for i in [0, count). rows, x and out: in device memory, or in pinned memory of the
// host.
cudaError_t LaunchExchangeRows(const CudaMatrix& x, const RowMove* rows, int64_t count, const CudaMatrix& out,
                               cudaStream_t stream);

// Brings `bytes` bytes of pinned memory to device memory, both aligned to 16 bytes, by loads of a kernel: it waits for
// no copies. For some KB; the last 16 bytes are written as a whole.
cudaError_t LaunchFetch(const std::byte* from, std::byte* to, size_t bytes, cudaStream_t stream);

// To and from the form of op_params.h, [rows] of KvQuantRowBytes(cols, quant) bytes at a multiple of 4. cols is a
// multiple of quant.group.
cudaError_t LaunchQuantizeKv(const CudaMatrix& rows, const KvQuant& quant, std::byte* out, cudaStream_t stream);
cudaError_t LaunchDequantizeKv(const std::byte* from, const KvQuant& quant, const CudaMatrix& out, cudaStream_t stream);

// Device::Sample for each row of logits (f32, at most kMostSampleVocab columns) with params[row], in device memory.
// The tables: as in SampleTables; they and ids, int32 [t, 1], are matrices of four-byte elements. A row's result is the
// same in every run.
inline constexpr int64_t kMostSampleVocab = int64_t{1} << 23;
struct CudaSampleTables {
  CudaMatrix counts, bias, allowed;
};
cudaError_t LaunchSample(const CudaMatrix& logits, const SampleParams* params, const CudaSampleTables& tables,
                         const CudaMatrix& ids, const CudaMatrix& values, cudaStream_t stream);

// A checksum of `size` bytes: the sum, modulo 2^64, of kSumPartials numbers that are written to `partials` (which the
// host may read, as pinned memory). The same for the same bytes wherever they lie and on whatever GPU.
inline constexpr int kSumPartials = 64;
cudaError_t LaunchSum(const std::byte* bytes, size_t size, uint64_t* partials, cudaStream_t stream);

}  // namespace runahead
