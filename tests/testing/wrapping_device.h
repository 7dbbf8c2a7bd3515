// A device that does what another one does: tests override what they count, hold up or let fail.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/device.h"

namespace runahead {

// As thread-safe as the inner device.
class WrappingDevice : public Device {
 public:
  explicit WrappingDevice(std::shared_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  bool host_reads_device_memory() const override { return inner_->host_reads_device_memory(); }
  bool has_host_link() const override { return inner_->has_host_link(); }
  DType compute_dtype() const override { return inner_->compute_dtype(); }
  std::string_view numerics() const override { return inner_->numerics(); }
  DType invariant_dtype() const override { return inner_->invariant_dtype(); }
  int64_t gemm_rows() const override { return inner_->gemm_rows(); }
  absl::Status CheckHeadDim(int64_t head_dim) const override { return inner_->CheckHeadDim(head_dim); }
  std::string SlowHeads(int64_t head_dim) const override { return inner_->SlowHeads(head_dim); }
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override {
    return inner_->Allocate(bytes, kind);
  }
  size_t memory_left() const override { return inner_->memory_left(); }
  std::unique_ptr<Stream> NewStream(std::string_view name) override { return inner_->NewStream(name); }
  absl::StatusOr<std::shared_ptr<const Weights>> LoadWeights(const WeightSource& source, unsigned uses) override {
    return inner_->LoadWeights(source, uses);
  }
  absl::StatusOr<std::shared_ptr<const Weights>> WeightsAt(const Weights& streamed, const BufferRef& slot) override {
    return inner_->WeightsAt(streamed, slot);
  }
  Event Record(Stream& stream) override { return inner_->Record(stream); }
  std::shared_ptr<const TimeMark> MarkTime(Stream& stream) override { return inner_->MarkTime(stream); }
  void WaitFor(Stream& stream, const Event& event) override { inner_->WaitFor(stream, event); }
  void Call(Stream& stream, std::function<void()> function) override { inner_->Call(stream, std::move(function)); }
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    return inner_->Copy(stream, from, to);
  }
  // Each by a Copy of its own, which tests override.
  absl::Status CopyAll(Stream& stream, std::vector<CopyPart> parts) override {
    for (const CopyPart& part : parts) {
      if (const absl::Status status = Copy(stream, part.from, part.to); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  void BeginStep(Stream& stream) override { inner_->BeginStep(stream); }
  void EndStep(Stream& stream) override { inner_->EndStep(stream); }
  absl::Status Embed(Stream& stream, const Weights& table, std::vector<int32_t> ids, bool accumulate,
                     const MutTensor& out) override {
    return inner_->Embed(stream, table, std::move(ids), accumulate, out);
  }
  absl::Status RmsNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, float eps,
                       const MutTensor& out) override {
    return inner_->RmsNorm(stream, x, weight, eps, out);
  }
  absl::Status HeadNorm(Stream& stream, const MutTensor& x, int64_t head_dim, const ConstTensor& weight,
                        float eps) override {
    return inner_->HeadNorm(stream, x, head_dim, weight, eps);
  }
  absl::Status LayerNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                         float eps, const MutTensor& out) override {
    return inner_->LayerNorm(stream, x, weight, bias, eps, out);
  }
  absl::Status Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                      const LinearOptions& options, const MutTensor& out) override {
    return inner_->Linear(stream, x, std::move(w), options, out);
  }
  absl::StatusOr<std::shared_ptr<const KvTable>> MakeKvTable(Stream& stream, KvLayout layout) override {
    return inner_->MakeKvTable(stream, layout);
  }
  absl::Status Rope(Stream& stream, const MutTensor& x, int64_t head_dim, const Rotation& rotation,
                    const KvTable& table, int64_t first_row) override {
    return inner_->Rope(stream, x, head_dim, rotation, table, first_row);
  }
  absl::Status StoreQkv(Stream& stream, const ConstTensor& qkv, const AttentionShape& shape, const MutTensor& q,
                        const KvTable& table, int64_t first_row, const BufferRef& layer) override {
    return inner_->StoreQkv(stream, qkv, shape, q, table, first_row, layer);
  }
  absl::Status Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                         const ConstBufferRef& layer, const MutTensor& out) override {
    return inner_->Attention(stream, q, shape, table, layer, out);
  }
  absl::Status AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                            const ConstBufferRef& layer, const MutTensor& partials) override {
    return inner_->AttendPieces(stream, q, shape, table, layer, partials);
  }
  absl::Status MergePieces(Stream& stream, const ConstTensor& partials, const AttentionShape& shape,
                           const KvTable& table, const MutTensor& out) override {
    return inner_->MergePieces(stream, partials, shape, table, out);
  }
  absl::Status GatedActivate(Stream& stream, const ConstTensor& gate_up, Activation activation,
                             const MutTensor& out) override {
    return inner_->GatedActivate(stream, gate_up, activation, out);
  }
  absl::Status Activate(Stream& stream, const ConstTensor& x, Activation activation, const MutTensor& out) override {
    return inner_->Activate(stream, x, activation, out);
  }
  absl::Status Scale(Stream& stream, const ConstTensor& x, float factor, bool accumulate,
                     const MutTensor& out) override {
    return inner_->Scale(stream, x, factor, accumulate, out);
  }
  absl::Status SoftCap(Stream& stream, const MutTensor& x, float cap) override {
    return inner_->SoftCap(stream, x, cap);
  }
  absl::Status GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> rows,
                          const MutTensor& out) override {
    return inner_->GatherRows(stream, x, std::move(rows), out);
  }
  absl::Status ExchangeRows(Stream& stream, const ConstTensor& x, std::vector<RowMove> rows,
                            const MutTensor& out) override {
    return inner_->ExchangeRows(stream, x, std::move(rows), out);
  }
  absl::Status QuantizeKv(Stream& stream, const ConstTensor& rows, const KvQuant& quant,
                          const BufferRef& out) override {
    return inner_->QuantizeKv(stream, rows, quant, out);
  }
  absl::Status DequantizeKv(Stream& stream, const ConstBufferRef& from, const KvQuant& quant,
                            const MutTensor& out) override {
    return inner_->DequantizeKv(stream, from, quant, out);
  }
  absl::Status TopK(Stream& stream, const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
                    const MutTensor& log_sum) override {
    return inner_->TopK(stream, logits, k, ids, values, log_sum);
  }
  absl::Status Sample(Stream& stream, const ConstTensor& logits, std::vector<SampleParams> params,
                      const SampleTables& tables, const MutTensor& ids, const MutTensor& values) override {
    return inner_->Sample(stream, logits, std::move(params), tables, ids, values);
  }

 protected:
  const std::shared_ptr<Device> inner_;
};

}  // namespace runahead
