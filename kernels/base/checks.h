// Argument checks of the ops, one function an op, for all devices. INVALID_ARGUMENT names the tensor and says what was
// wanted.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "kernels/base/tensor.h"

namespace runahead {

// What a device takes where the contract of Device leaves it open.
struct OpLimits {
  absl::Span<const DType> dtypes;         // of activations in RmsNorm, Linear, StoreQkv, attention, GatedActivate
  absl::Span<const DType> kv_dtypes;      // of KV in StoreQkv and attention
  int64_t head_dim_multiple = 2;          // of attention
  int64_t most_head_dim = 0;              // of attention
  int64_t most_vocab = int64_t{1} << 31;  // of Sample
};

inline constexpr int64_t kMostTopK = 512;

// The dtype is one of `dtypes`, the shape is [rows, cols], and the buffer covers it.
absl::Status CheckTensor(std::string_view name, const Tensor& tensor, absl::Span<const DType> dtypes, int64_t rows,
                         int64_t cols);

// A source has rows and columns, no run is empty, its type can store so many columns, and its cuts rise.
absl::Status CheckWeightSource(const WeightSource& source);

absl::Status CheckCopy(const ConstBufferRef& from, const BufferRef& to);
// Of Device::WeightsAt: weights with a home, and a slot of its size at a multiple of 64 bytes.
absl::Status CheckWeightsAt(const Weights& streamed, const BufferRef& slot);
absl::Status CheckEmbed(const Weights& table, const std::vector<int32_t>& ids, const MutTensor& out);
absl::Status CheckRmsNorm(const OpLimits& limits, const ConstTensor& x, const ConstTensor& weight,
                          const MutTensor& out);
absl::Status CheckHeadNorm(const MutTensor& x, int64_t head_dim, const ConstTensor& weight);
absl::Status CheckLayerNorm(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                            const MutTensor& out);
// x_dtype: what the device reads under these options.
absl::Status CheckLinear(const OpLimits& limits, const ConstTensor& x, DType x_dtype, const Weights& w,
                         const LinearOptions& options, const MutTensor& out);
absl::Status CheckHeadDim(const OpLimits& limits, int64_t head_dim);
absl::Status CheckKvLayout(const KvLayout& layout);
absl::Status CheckRope(const MutTensor& x, int64_t head_dim, const Rotation& rotation, const KvTable& table,
                       int64_t first_row);
absl::Status CheckStoreQkv(const OpLimits& limits, const ConstTensor& qkv, const AttentionShape& shape,
                           const MutTensor& q, const KvTable& table, int64_t first_row, const BufferRef& layer);
absl::Status CheckAttention(const OpLimits& limits, const ConstTensor& q, const AttentionShape& shape,
                            const KvTable& table, const ConstBufferRef& layer, const MutTensor& out);
absl::Status CheckAttendPieces(const OpLimits& limits, const ConstTensor& q, const AttentionShape& shape,
                               const KvTable& table, const ConstBufferRef& layer, const MutTensor& partials);
absl::Status CheckMergePieces(const OpLimits& limits, const ConstTensor& partials, const AttentionShape& shape,
                              const KvTable& table, const MutTensor& out);
absl::Status CheckGatedActivate(const OpLimits& limits, const ConstTensor& gate_up, const MutTensor& out);
absl::Status CheckActivate(const ConstTensor& x, const MutTensor& out);
absl::Status CheckScale(const ConstTensor& x, const MutTensor& out);
absl::Status CheckSoftCap(const MutTensor& x, float cap);
absl::Status CheckGatherRows(const ConstTensor& x, const std::vector<int32_t>& rows, const MutTensor& out);
absl::Status CheckExchangeRows(const ConstTensor& x, const std::vector<RowMove>& rows, const MutTensor& out);
absl::Status CheckQuantizeKv(const ConstTensor& rows, const KvQuant& quant, const BufferRef& out);
absl::Status CheckDequantizeKv(const ConstBufferRef& from, const KvQuant& quant, const MutTensor& out);
absl::Status CheckTopK(const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
                       const MutTensor& log_sum);
absl::Status CheckSample(const OpLimits& limits, const ConstTensor& logits, const std::vector<SampleParams>& params,
                         const SampleTables& tables, const MutTensor& ids, const MutTensor& values);

}  // namespace runahead
