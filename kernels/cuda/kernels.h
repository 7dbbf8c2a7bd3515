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

namespace runahead {

// [rows, cols] elements of `dtype`, rows `stride` elements apart.
struct CudaMatrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
};

// out[t] = table[ids[t]].
cudaError_t LaunchEmbed(const CudaMatrix& table, const int32_t* ids, const CudaMatrix& out, cudaStream_t stream);

// out[t,d] = x[t,d] * weight[d] / sqrt(mean_d(x[t,d]^2) + eps).  x: f32; weight: [cols].
cudaError_t LaunchRmsNorm(const CudaMatrix& x, const float* weight, float eps, const CudaMatrix& out,
                          cudaStream_t stream);

// Splits qkv [t, (heads + 2*kv_heads)*head_dim] (f32), rotates Q and K by halves at positions[t] with `rotation`
// [positions, head_dim] = (cos | sin), writes Q to q and (K|V) of row t, in kv_dtype, to kv_rows[t].
struct RopeStoreArgs {
  CudaMatrix qkv;
  const float* rotation = nullptr;
  const int32_t* positions = nullptr;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // even
  CudaMatrix q;
  std::byte* const* kv_rows = nullptr;
  DType kv_dtype = DType::kF32;
};
cudaError_t LaunchRopeStore(const RopeStoreArgs& args, cudaStream_t stream);

// out[t,f] = silu(gate_up[t,f]) * gate_up[t,F+f], F = out.cols.
cudaError_t LaunchSwiGlu(const CudaMatrix& gate_up, const CudaMatrix& out, cudaStream_t stream);

// The k (1..128, at most cols) largest of each row of logits (f32), falling, ties to the smaller id, and
// log(sum_v exp(logits[t,v])). ids: int32 in a matrix of four-byte elements [t, k]; values: f32 [t, k]; log_sum: f32
// [t, 1]. Rows with NaN: log_sum is NaN, ids stay inside the row.
cudaError_t LaunchTopK(const CudaMatrix& logits, int k, const CudaMatrix& ids, const CudaMatrix& values,
                       const CudaMatrix& log_sum, cudaStream_t stream);

// out [rows, cols] from rows stored as `type` (weight_type.h), dense from `stored`. cols: a multiple of 32 for the Q
// types.
cudaError_t LaunchDequantize(WeightType type, const std::byte* stored, const CudaMatrix& out, cudaStream_t stream);

// One sequence of a ragged batch: as AttentionSequence of device.h, its spans are spans[first_span .. + span_count).
struct AttentionItem {
  int64_t query_row = 0;
  int64_t queries = 0;
  int64_t length = 0;
  int32_t first_span = 0;
  int32_t span_count = 0;
};
// KV rows of positions [first, first + tokens) of a sequence: [tokens][K|V][kv_heads*head_dim].
struct AttentionSpan {
  const std::byte* rows = nullptr;
  int64_t first = 0;
  int64_t tokens = 0;
};
// The plain attention kernel: any head_dim up to 256, any dtypes, any spans; what faster ones are compared with and
// what runs where they do not. The order in which a query's sums are taken depends on its position only.
struct PlainAttentionArgs {
  CudaMatrix q;    // [t, heads*head_dim]
  CudaMatrix out;  // [t, heads*head_dim]
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  DType kv_dtype = DType::kF32;
  float scale = 1.0f;
  const AttentionItem* items = nullptr;  // [item_count]
  const AttentionSpan* spans = nullptr;
  int item_count = 0;
  int64_t most_queries = 0;  // of any item
};
cudaError_t LaunchPlainAttention(const PlainAttentionArgs& args, cudaStream_t stream);

// out[t,d] = (x[t,d] - mean(x[t])) / sqrt(var(x[t]) + eps) * weight[d] + bias[d].  x: f32; weight, bias: [cols].
cudaError_t LaunchLayerNorm(const CudaMatrix& x, const float* weight, const float* bias, float eps,
                            const CudaMatrix& out, cudaStream_t stream);

// out[t,f] = activation(x[t,f]); out may be x.
cudaError_t LaunchActivate(const CudaMatrix& x, Activation activation, const CudaMatrix& out, cudaStream_t stream);
// out[t,n] = activation(x[t,n] + bias[n]): what Linear does last where cuBLASLt does not. bias: [cols], or null;
// out may be x.
cudaError_t LaunchBias(const CudaMatrix& x, const float* bias, std::optional<Activation> activation,
                       const CudaMatrix& out, cudaStream_t stream);

// out[i] = x[rows[i]], as many as out has. rows: in device memory. x and out: of one dtype and as many columns, in
// memory apart.
cudaError_t LaunchGatherRows(const CudaMatrix& x, const int32_t* rows, const CudaMatrix& out, cudaStream_t stream);

// To and from the form of op_params.h, [rows] of KvQuantRowBytes(cols, quant) bytes at a multiple of 4. cols is a
// multiple of quant.group.
cudaError_t LaunchQuantizeKv(const CudaMatrix& rows, const KvQuant& quant, std::byte* out, cudaStream_t stream);
cudaError_t LaunchDequantizeKv(const std::byte* from, const KvQuant& quant, const CudaMatrix& out, cudaStream_t stream);

// Device::Sample for each row of logits (f32, at most kMostSampleVocab columns) with params[row], in device memory.
// counts: int32, and ids: int32 [t, 1], in matrices of four-byte elements. A row's result is the same in every run.
inline constexpr int64_t kMostSampleVocab = int64_t{1} << 23;
cudaError_t LaunchSample(const CudaMatrix& logits, const SampleParams* params, const CudaMatrix& counts,
                         const CudaMatrix& ids, const CudaMatrix& values, cudaStream_t stream);

}  // namespace runahead
