// The class behind NewCudaDevice; its ops are in cuda_ops.cc, KV tables and attention in cuda_attention.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/checks.h"
#include "kernels/base/device.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_weights.h"
#include "kernels/cuda/gemm.h"

namespace runahead {

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<const CudaContext> context, DType compute_dtype, std::unique_ptr<GemmPlanner> planner);

  std::string_view name() const override { return name_; }
  bool host_reads_device_memory() const override { return false; }
  bool has_host_link() const override { return true; }
  size_t memory_left() const override { return context_->memory->left(); }
  DType compute_dtype() const override { return dtype_; }
  DType invariant_dtype() const override { return dtype_; }
  // Enough rows to fill a large GPU; 22,016 columns of 4,096 rows (Llama-7B's gate and up) are 180 MB in bf16.
  int64_t gemm_rows() const override { return 4096; }
  absl::Status CheckHeadDim(int64_t head_dim) const override { return runahead::CheckHeadDim(limits(), head_dim); }
  std::string SlowHeads(int64_t head_dim) const override;

  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override;
  std::unique_ptr<Stream> NewStream(std::string_view name) override;
  absl::StatusOr<std::shared_ptr<const Weights>> LoadWeights(const WeightSource& source, unsigned uses) override;
  absl::StatusOr<std::shared_ptr<const Weights>> WeightsAt(const Weights& streamed, const BufferRef& slot) override;

  Event Record(Stream& stream) override;
  std::shared_ptr<const TimeMark> MarkTime(Stream& stream) override;
  void WaitFor(Stream& stream, const Event& event) override;
  void Call(Stream& stream, std::function<void()> function) override;
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override;
  absl::Status CopyAll(Stream& stream, std::vector<CopyPart> parts) override;
  void BeginStep(Stream& stream) override;
  void EndStep(Stream& stream) override;

  absl::Status Embed(Stream& stream, const Weights& table, std::vector<int32_t> ids, bool accumulate,
                     const MutTensor& out) override;
  absl::Status RmsNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, float eps,
                       const MutTensor& out) override;
  absl::Status LayerNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                         float eps, const MutTensor& out) override;
  absl::Status Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                      const LinearOptions& options, const MutTensor& out) override;
  absl::Status HeadNorm(Stream& stream, const MutTensor& x, int64_t head_dim, const ConstTensor& weight,
                        float eps) override;
  absl::StatusOr<std::shared_ptr<const KvTable>> MakeKvTable(Stream& stream, KvLayout layout) override;
  absl::Status Rope(Stream& stream, const MutTensor& x, int64_t head_dim, const Rotation& rotation,
                    const KvTable& table, int64_t first_row) override;
  absl::Status StoreQkv(Stream& stream, const ConstTensor& qkv, const AttentionShape& shape, const MutTensor& q,
                        const KvTable& table, int64_t first_row, const BufferRef& layer) override;
  absl::Status Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                         const ConstBufferRef& layer, const MutTensor& out) override;
  absl::Status AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                            const ConstBufferRef& layer, const MutTensor& partials) override;
  absl::Status MergePieces(Stream& stream, const ConstTensor& partials, const AttentionShape& shape,
                           const KvTable& table, const MutTensor& out) override;
  absl::Status GatedActivate(Stream& stream, const ConstTensor& gate_up, Activation activation,
                             const MutTensor& out) override;
  absl::Status Activate(Stream& stream, const ConstTensor& x, Activation activation, const MutTensor& out) override;
  absl::Status Scale(Stream& stream, const ConstTensor& x, float factor, bool accumulate,
                     const MutTensor& out) override;
  absl::Status SoftCap(Stream& stream, const MutTensor& x, float cap) override;
  absl::Status GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> rows,
                          const MutTensor& out) override;
  absl::Status ExchangeRows(Stream& stream, const ConstTensor& x, std::vector<RowMove> rows,
                            const MutTensor& out) override;
  absl::Status QuantizeKv(Stream& stream, const ConstTensor& rows, const KvQuant& quant, const BufferRef& out) override;
  absl::Status DequantizeKv(Stream& stream, const ConstBufferRef& from, const KvQuant& quant,
                            const MutTensor& out) override;
  absl::Status TopK(Stream& stream, const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
                    const MutTensor& log_sum) override;
  absl::Status Sample(Stream& stream, const ConstTensor& logits, std::vector<SampleParams> params,
                      const SampleTables& tables, const MutTensor& ids, const MutTensor& values) override;

 private:
  OpLimits limits() const;

  const std::shared_ptr<const CudaContext> context_;
  const std::string name_;
  const DType dtype_;
  const std::vector<DType> dtypes_;  // that ops take: f32 and dtype_
  GemmPlans gemm_plans_;
  WeightUploader uploader_;
};

inline CudaStream& CudaStreamOf(Stream& stream) {
  return static_cast<CudaStream&>(stream);
}

inline CudaMatrix MatrixOf(const Tensor& tensor) {
  return {tensor.ref.buffer == nullptr ? nullptr : tensor.ref.data(), tensor.dtype, tensor.rows, tensor.cols,
          tensor.stride};
}

// Where an array of an op's parameters lies on the GPU.
template <typename T>
const T* ArrayAt(const std::byte* params, size_t offset) {
  return reinterpret_cast<const T*>(params + offset);
}

}  // namespace runahead
