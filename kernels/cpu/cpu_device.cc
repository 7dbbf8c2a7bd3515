#include "kernels/cpu/cpu_device.h"

#include <cstring>
#include <utility>

#include "kernels/base/checks.h"
#include "kernels/base/memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/cpu_kv_table.h"
#include "kernels/cpu/cpu_stream.h"
#include "kernels/cpu/cpu_time_mark.h"
#include "kernels/cpu/cpu_weights.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/link_guard.h"
#include "kernels/cpu/row_ops.h"

namespace runahead {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};
constexpr OpLimits kLimits{
    .dtypes = kDTypes, .kv_dtypes = kCpuKvDTypes, .head_dim_multiple = 8, .most_head_dim = kMaxAttentionHeadDim};

CpuStream& Cast(Stream& stream) {
  return static_cast<CpuStream&>(stream);
}

// The table, held as long as an op needs it.
std::shared_ptr<const CpuKvTable> Held(const KvTable& table) {
  return static_cast<const CpuKvTable&>(table).shared_from_this();
}

class CpuDevice : public Device {
 public:
  CpuDevice(const CpuDeviceOptions& options, std::unique_ptr<ThreadPool> pool, std::unique_ptr<Gemm> gemm)
      : compute_dtype_(options.compute_dtype),
        kv_dtype_(options.kv_dtype.value_or(options.compute_dtype)),
        int8_(options.int8 ? &FastestInt8Kernels() : nullptr),
        nice_(options.nice),
        charges_(options.charges),
        pool_(std::move(pool)),
        gemm_(std::move(gemm)),
        budget_(std::make_shared<MemoryBudget>(options.memory_budget)),
        weights_arena_(HostChunks(budget_)),
        shared_weights_(options.shared_weights),
        link_(options.emulated_link),
        guard_(link_ != nullptr) {}

  std::string_view name() const override { return "cpu"; }
  bool host_reads_device_memory() const override { return true; }
  bool has_host_link() const override { return link_ != nullptr; }
  DType compute_dtype() const override { return compute_dtype_; }
  std::string_view numerics() const override { return int8_ != nullptr ? "int8" : DTypeName(compute_dtype_); }
  DType kv_dtype() const override { return kv_dtype_; }
  DType invariant_dtype() const override { return DType::kF32; }
  // Intermediates stay in the second-level cache (512 x 2 x 1536 x 2 bytes is 3 MB on the quick-start model), and
  // scratch memory does not grow with the prompt.
  int64_t gemm_rows() const override { return 512; }
  absl::Status CheckHeadDim(int64_t head_dim) const override { return runahead::CheckHeadDim(kLimits, head_dim); }

  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override;
  size_t memory_left() const override { return budget_->left(); }
  std::unique_ptr<Stream> NewStream(std::string_view name) override {
    return std::make_unique<CpuStream>(name, nice_, charges_);
  }
  absl::StatusOr<std::shared_ptr<const Weights>> LoadWeights(const WeightSource& source, unsigned uses) override;
  absl::StatusOr<std::shared_ptr<const Weights>> WeightsAt(const Weights& streamed, const BufferRef& slot) override;

  Event Record(Stream& stream) override;
  std::shared_ptr<const TimeMark> MarkTime(Stream& stream) override;
  void WaitFor(Stream& stream, const Event& event) override;
  void Call(Stream& stream, std::function<void()> function) override { Cast(stream).EnqueueMark(std::move(function)); }
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override;
  absl::Status CopyAll(Stream& stream, std::vector<CopyPart> parts) override;
  // An op costs little to enqueue here, but where it is charged for.
  void BeginStep(Stream& stream) override { Cast(stream).BeginStep(); }
  void EndStep(Stream& stream) override { Cast(stream).EndStep(); }

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
  absl::StatusOr<std::shared_ptr<const KvTable>> MakeKvTable(Stream&, KvLayout layout) override {
    return CpuKvTable::Make(std::move(layout));
  }
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
  void CopyNow(const CopyPart& part) const;
  RowOps rows() const { return {kernels_, *pool_}; }
  CpuLinear linear() const { return {kernels_, *pool_, *gemm_, int8_}; }

  const DType compute_dtype_;
  const DType kv_dtype_;
  const Int8Kernels* const int8_;  // null: nothing is multiplied in 8 bits
  const int nice_;
  const CallCharges charges_;
  const CpuIsa isa_ = DetectCpuIsa();
  const CpuKernels& kernels_ = KernelsFor(isa_ >= CpuIsa::kAvx512);
  const std::unique_ptr<ThreadPool> pool_;
  const std::unique_ptr<Gemm> gemm_;
  const std::shared_ptr<MemoryBudget> budget_;
  Arena weights_arena_;
  const std::shared_ptr<SharedWeights> shared_weights_;  // null: none
  const std::shared_ptr<EmulatedLink> link_;             // null: none
  const LinkGuard guard_;
};

absl::StatusOr<std::shared_ptr<Buffer>> CpuDevice::Allocate(size_t bytes, MemoryKind kind) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                            AllocateHostMemory(bytes, kind == MemoryKind::kDevice ? budget_ : nullptr));
  return guard_.Mark(std::move(memory), kind);
}

absl::StatusOr<std::shared_ptr<const Weights>> CpuDevice::LoadWeights(const WeightSource& source, unsigned uses) {
  return CpuWeights::Load(source, uses,
                          {kernels_, *pool_, *gemm_, weights_arena_, int8_, shared_weights_.get(), budget_});
}

absl::StatusOr<std::shared_ptr<const Weights>> CpuDevice::WeightsAt(const Weights& streamed, const BufferRef& slot) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWeightsAt(streamed, slot));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("WeightsAt", {{"slot", slot}}));
  return static_cast<const CpuWeights&>(streamed).At(slot);
}

Event CpuDevice::Record(Stream& stream) {
  EventSource source;
  Event event = source.event();
  Cast(stream).EnqueueMark([source = std::move(source)] { source.Fire(absl::OkStatus()); });
  return event;
}

std::shared_ptr<const TimeMark> CpuDevice::MarkTime(Stream& stream) {
  auto mark = std::make_shared<CpuTimeMark>();
  Cast(stream).EnqueueMark([mark] { mark->Pass(); });
  return mark;
}

void CpuDevice::WaitFor(Stream& stream, const Event& event) {
  if (event.fired()) return;
  Cast(stream).EnqueueMark([event] { event.Wait().IgnoreError(); });
}

absl::Status CpuDevice::Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) {
  RUNAHEAD_RETURN_IF_ERROR(CheckCopy(from, to));
  if (from.size == 0) return absl::OkStatus();
  Cast(stream).Enqueue([this, part = CopyPart{from, to}] { CopyNow(part); });
  return absl::OkStatus();
}

absl::Status CpuDevice::CopyAll(Stream& stream, std::vector<CopyPart> parts) {
  for (const CopyPart& part : parts) RUNAHEAD_RETURN_IF_ERROR(CheckCopy(part.from, part.to));
  if (parts.empty()) return absl::OkStatus();
  Cast(stream).Enqueue([this, parts = std::move(parts)] {
    for (const CopyPart& part : parts) CopyNow(part);
  });
  return absl::OkStatus();
}

void CpuDevice::CopyNow(const CopyPart& part) const {
  const auto& [from, to] = part;
  if (link_ == nullptr || guard_.KindOf(from) == guard_.KindOf(to)) {
    std::memmove(to.data(), from.data(), from.size);
  } else if (guard_.KindOf(to) == MemoryKind::kDevice) {
    link_->CopyToDevice(from.data(), to.data(), from.size);
  } else {
    link_->CopyToHost(from.data(), to.data(), from.size);
  }
}

absl::Status CpuDevice::Embed(Stream& stream, const Weights& table, std::vector<int32_t> ids, bool accumulate,
                              const MutTensor& out) {
  const auto& weights = static_cast<const CpuWeights&>(table);
  if (!weights.has_rows()) return absl::FailedPreconditionError("the embedding was not loaded for kUseDecode");
  RUNAHEAD_RETURN_IF_ERROR(CheckEmbed(table, ids, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("Embed", {{"out", out}}));
  Cast(stream).Compute(
      [this, &weights, ids = std::move(ids), accumulate, out] { rows().Embed(weights, ids, accumulate, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::RmsNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, float eps,
                                const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRmsNorm(kLimits, x, weight, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("RmsNorm", {{"x", x}, {"weight", weight}, {"out", out}}));
  Cast(stream).Compute([this, x, weight, eps, out] { rows().RmsNorm(x, weight, eps, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::LayerNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight,
                                  const ConstTensor& bias, float eps, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLayerNorm(x, weight, bias, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("LayerNorm", {{"x", x}, {"weight", weight}, {"bias", bias}, {"out", out}}));
  Cast(stream).Compute([this, x, weight, bias, eps, out] { rows().LayerNorm(x, weight, bias, eps, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                               const LinearOptions& options, const MutTensor& out) {
  const auto weights = std::static_pointer_cast<const CpuWeights>(std::move(w));
  const bool invariant = options.batch_invariant;
  RUNAHEAD_RETURN_IF_ERROR(
      CheckLinear(kLimits, x, invariant ? invariant_dtype() : compute_dtype(), *weights, options, out));
  RUNAHEAD_RETURN_IF_ERROR(weights->CheckLoadedFor(options, out.cols));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("Linear", {{"x", x}, {"options.bias", options.bias}, {"out", out}}));
  if (x.rows == 0) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor sums, CpuLinear::SumsFor(*weights, options, out));
  Cast(stream).Compute([this, weights, x, options, sums, out] {
    if (options.blocks.empty()) return linear().Run(*weights, x, options, sums, out);
    int64_t row = 0;
    for (const int32_t count : options.blocks) {
      linear().Run(*weights, x.Rows(row, count), options, sums.Rows(row, count), out.Rows(row, count));
      row += count;
    }
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::HeadNorm(Stream& stream, const MutTensor& x, int64_t head_dim, const ConstTensor& weight,
                                 float eps) {
  RUNAHEAD_RETURN_IF_ERROR(CheckHeadNorm(x, head_dim, weight));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("HeadNorm", {{"x", x}, {"weight", weight}}));
  Cast(stream).Compute([this, x, head_dim, weight, eps] { rows().HeadNorm(x, head_dim, weight, eps); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Rope(Stream& stream, const MutTensor& x, int64_t head_dim, const Rotation& rotation,
                             const KvTable& table, int64_t first_row) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRope(x, head_dim, rotation, table, first_row));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("Rope", {{"x", x}, {"rotation.table", rotation.table}}));
  Cast(stream).Compute([=, this, table = Held(table)] { rows().Rope(x, head_dim, rotation, *table, first_row); });
  return absl::OkStatus();
}

absl::Status CpuDevice::StoreQkv(Stream& stream, const ConstTensor& qkv, const AttentionShape& shape,
                                 const MutTensor& q, const KvTable& table, int64_t first_row, const BufferRef& layer) {
  RUNAHEAD_RETURN_IF_ERROR(CheckStoreQkv(kLimits, qkv, shape, q, table, first_row, layer));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("StoreQkv", {{"qkv", qkv}, {"q", q}, {"layer", layer}}));
  Cast(stream).Compute([=, this, table = Held(table)] { rows().StoreQkv(qkv, shape, q, *table, first_row, layer); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                  const KvTable& table, const ConstBufferRef& layer, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttention(kLimits, q, shape, table, layer, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("Attention", {{"q", q}, {"layer", layer}, {"out", out}}));
  Cast(stream).Compute([this, q, shape, table = Held(table), layer, out] {
    RunCpuAttention(*pool_, isa_, {.q = q, .shape = shape, .table = *table, .layer = layer, .out = out});
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                     const KvTable& table, const ConstBufferRef& layer, const MutTensor& partials) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttendPieces(kLimits, q, shape, table, layer, partials));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("AttendPieces", {{"q", q}, {"layer", layer}, {"partials", partials}}));
  Cast(stream).Compute([this, q, shape, table = Held(table), layer, partials] {
    AttendCpuPieces(*pool_, isa_, {.q = q, .shape = shape, .table = *table, .layer = layer, .out = partials});
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::MergePieces(Stream& stream, const ConstTensor& partials, const AttentionShape& shape,
                                    const KvTable& table, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckMergePieces(kLimits, partials, shape, table, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("MergePieces", {{"partials", partials}, {"out", out}}));
  Cast(stream).Compute(
      [this, partials, shape, table = Held(table), out] { MergeCpuPieces(*pool_, partials, shape, *table, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::GatedActivate(Stream& stream, const ConstTensor& gate_up, Activation activation,
                                      const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckGatedActivate(kLimits, gate_up, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("GatedActivate", {{"gate_up", gate_up}, {"out", out}}));
  Cast(stream).Compute([this, gate_up, activation, out] { rows().GatedActivate(gate_up, activation, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Activate(Stream& stream, const ConstTensor& x, Activation activation, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckActivate(x, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("Activate", {{"x", x}, {"out", out}}));
  Cast(stream).Compute([this, x, activation, out] { rows().Activate(x, activation, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Scale(Stream& stream, const ConstTensor& x, float factor, bool accumulate,
                              const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckScale(x, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("Scale", {{"x", x}, {"out", out}}));
  Cast(stream).Compute([this, x, factor, accumulate, out] { rows().Scale(x, factor, accumulate, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::SoftCap(Stream& stream, const MutTensor& x, float cap) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSoftCap(x, cap));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("SoftCap", {{"x", x}}));
  Cast(stream).Compute([this, x, cap] { rows().SoftCap(x, cap); });
  return absl::OkStatus();
}

absl::Status CpuDevice::GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> indices,
                                   const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckGatherRows(x, indices, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("GatherRows", {{"x", x}, {"out", out}}));
  Cast(stream).Compute([this, x, indices = std::move(indices), out] { rows().GatherRows(x, indices, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::ExchangeRows(Stream& stream, const ConstTensor& x, std::vector<RowMove> moves,
                                     const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckExchangeRows(x, moves, out));
  if (moves.empty()) return absl::OkStatus();
  const MemoryKind to = guard_.KindOf(out.ref);
  const bool crosses = link_ != nullptr && guard_.KindOf(x.ref) != to;
  Cast(stream).Enqueue([this, x, moves = std::move(moves), out, to, crosses] {
    rows().ExchangeRows(x, moves, out);
    if (crosses) link_->Interleave(to == MemoryKind::kDevice, moves.size() * x.cols * DTypeSize(x.dtype));
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::QuantizeKv(Stream& stream, const ConstTensor& kv, const KvQuant& quant, const BufferRef& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckQuantizeKv(kv, quant, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("QuantizeKv", {{"rows", kv}, {"out", out}}));
  Cast(stream).Compute([this, kv, quant, out] { rows().QuantizeKv(kv, quant, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::DequantizeKv(Stream& stream, const ConstBufferRef& from, const KvQuant& quant,
                                     const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckDequantizeKv(from, quant, out));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("DequantizeKv", {{"from", from}, {"out", out}}));
  Cast(stream).Compute([this, from, quant, out] { rows().DequantizeKv(from, quant, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::TopK(Stream& stream, const ConstTensor& logits, int64_t k, const MutTensor& ids,
                             const MutTensor& values, const MutTensor& log_sum) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTopK(logits, k, ids, values, log_sum));
  RUNAHEAD_RETURN_IF_ERROR(
      guard_.Check("TopK", {{"logits", logits}, {"ids", ids}, {"values", values}, {"log_sum", log_sum}}));
  Cast(stream).Compute([this, logits, k, ids, values, log_sum] { rows().TopK(logits, k, ids, values, log_sum); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Sample(Stream& stream, const ConstTensor& logits, std::vector<SampleParams> params,
                               const SampleTables& tables, const MutTensor& ids, const MutTensor& values) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSample(kLimits, logits, params, tables, ids, values));
  RUNAHEAD_RETURN_IF_ERROR(guard_.Check("Sample", {{"logits", logits},
                                                   {"tables.counts", tables.counts},
                                                   {"tables.bias", tables.bias},
                                                   {"tables.allowed", tables.allowed},
                                                   {"ids", ids},
                                                   {"values", values}}));
  Cast(stream).Compute([this, logits, params = std::move(params), tables, ids, values] {
    rows().Sample(logits, params, tables, ids, values);
  });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> NewCpuDevice(const CpuDeviceOptions& options) {
  RUNAHEAD_RETURN_IF_ERROR(CheckCpuDeviceOptions(options));
  auto pool = std::make_unique<ThreadPool>(options.threads, options.nice);
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<Gemm> gemm, Gemm::Make(options.compute_dtype, *pool));
  return std::make_shared<CpuDevice>(options, std::move(pool), std::move(gemm));
}

}  // namespace runahead
