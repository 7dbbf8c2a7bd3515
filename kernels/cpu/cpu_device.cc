#include "kernels/cpu/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/checks.h"
#include "kernels/base/memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_kv_table.h"
#include "kernels/cpu/cpu_stream.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pacer.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/stored_weights.h"

namespace runahead {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};
constexpr OpLimits kLimits{.dtypes = kDTypes, .head_dim_multiple = 8, .most_head_dim = kMaxAttentionHeadDim};
constexpr int kMostThreads = 1024;
// Copies hold the bus for so many bytes at a time, so that streams that share a direction share its speed.
constexpr size_t kCopyPiece = 256 << 10;

struct CpuWeights : Weights {
  CpuWeights(int64_t rows, int64_t cols) : Weights(rows, cols) {}
  std::optional<StoredWeights> stored;         // kUseDecode
  std::unique_ptr<const PackedMatrix> packed;  // kUsePrefill
  // Of that, what lies between the source's cuts, in its memory where the layout has borders there; none without cuts.
  struct Part {
    int64_t begin, end;
    std::unique_ptr<const PackedMatrix> packed;
  };
  std::vector<Part> parts;

  bool IsBorder(int64_t row) const {
    return row == 0 || row == rows() ||
           std::any_of(parts.begin(), parts.end(), [row](const Part& part) { return part.begin == row; });
  }
};

// Memory of the device, which remembers its kind: copies between kinds are paced.
class KindBuffer : public Buffer {
 public:
  KindBuffer(std::shared_ptr<Buffer> memory, MemoryKind kind)
      : Buffer(memory->data(), memory->size()), kind(kind), memory_(std::move(memory)) {}
  const MemoryKind kind;

 private:
  const std::shared_ptr<Buffer> memory_;
};

// Memory that is not of this device (a mapped file, a test's) counts as the host's.
MemoryKind KindOf(const BufferRef& ref) {
  const auto* buffer = dynamic_cast<const KindBuffer*>(ref.buffer.get());
  return buffer == nullptr ? MemoryKind::kHost : buffer->kind;
}

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
        pool_(std::move(pool)),
        gemm_(std::move(gemm)),
        budget_(std::make_shared<MemoryBudget>(options.memory_budget)),
        weights_arena_(HostChunks(budget_)),
        to_device_(options.emulated_link_gbps),
        to_host_(options.emulated_link_gbps) {}

  std::string_view name() const override { return "cpu"; }
  bool host_reads_device_memory() const override { return true; }
  bool has_host_link() const override { return !to_device_.unlimited(); }
  DType compute_dtype() const override { return compute_dtype_; }
  DType invariant_dtype() const override { return DType::kF32; }
  // Intermediates stay in the second-level cache (512 x 2 x 1536 x 2 bytes is 3 MB on the quick-start model), and
  // scratch memory does not grow with the prompt.
  int64_t gemm_rows() const override { return 512; }

  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override;
  size_t memory_left() const override { return budget_->left(); }
  std::unique_ptr<Stream> NewStream(std::string_view name) override { return std::make_unique<CpuStream>(name); }
  absl::StatusOr<std::shared_ptr<const Weights>> LoadWeights(const WeightSource& source, unsigned uses) override;

  Event Record(Stream& stream) override;
  void WaitFor(Stream& stream, const Event& event) override;
  void Call(Stream& stream, std::function<void()> function) override { Cast(stream).Enqueue(std::move(function)); }
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override;
  void BeginStep(Stream&) override {}  // an op costs little to enqueue here
  void EndStep(Stream&) override {}

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
  absl::Status GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> rows,
                          const MutTensor& out) override;
  absl::Status QuantizeKv(Stream& stream, const ConstTensor& rows, const KvQuant& quant, const BufferRef& out) override;
  absl::Status DequantizeKv(Stream& stream, const ConstBufferRef& from, const KvQuant& quant,
                            const MutTensor& out) override;
  absl::Status TopK(Stream& stream, const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
                    const MutTensor& log_sum) override;
  absl::Status Sample(Stream& stream, const ConstTensor& logits, std::vector<SampleParams> params,
                      const MutTensor& counts, const MutTensor& ids, const MutTensor& values) override;

 private:
  // The two forms of Linear; they block until it is done. sums: out, or f32 of its shape.
  void InvariantLinear(const CpuWeights& w, const ConstTensor& x, const LinearOptions& options, const MutTensor& sums,
                       const MutTensor& out) const;
  void PackedLinear(const CpuWeights& w, const ConstTensor& x, const LinearOptions& options,
                    const MutTensor& out) const;
  RowOps rows() const { return {kernels_, *pool_}; }

  const DType compute_dtype_;
  const CpuIsa isa_ = DetectCpuIsa();
  const CpuKernels& kernels_ = KernelsFor(isa_ >= CpuIsa::kAvx512);
  const std::unique_ptr<ThreadPool> pool_;
  const std::unique_ptr<Gemm> gemm_;
  const std::shared_ptr<MemoryBudget> budget_;
  Arena weights_arena_;
  Pacer to_device_;
  Pacer to_host_;
};

absl::StatusOr<std::shared_ptr<Buffer>> CpuDevice::Allocate(size_t bytes, MemoryKind kind) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                            AllocateHostMemory(bytes, kind == MemoryKind::kDevice ? budget_ : nullptr));
  return std::make_shared<KindBuffer>(std::move(memory), kind);
}

absl::StatusOr<std::shared_ptr<const Weights>> CpuDevice::LoadWeights(const WeightSource& source, unsigned uses) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWeightSource(source));
  if ((uses & (kUsePrefill | kUseDecode)) == 0) return absl::InvalidArgumentError("weights that no op may use");
  auto weights = std::make_shared<CpuWeights>(source.rows(), source.cols);
  // The prefill form is made from the stored one, which is dropped again where decode does not want it.
  Arena passing(HostChunks(nullptr));
  RUNAHEAD_ASSIGN_OR_RETURN(StoredWeights stored,
                            StoredWeights::Make(source, (uses & kUseDecode) != 0 ? weights_arena_ : passing, *pool_));
  if ((uses & kUsePrefill) != 0) {
    const auto read_row = [&](int64_t row, float* out) { stored.DequantizeRow(kernels_, row, out); };
    RUNAHEAD_ASSIGN_OR_RETURN(weights->packed, gemm_->Pack(weights->rows(), weights->cols(), read_row, weights_arena_));
    int64_t begin = 0;
    for (size_t i = 0; i <= source.cuts.size() && !source.cuts.empty(); ++i) {
      const int64_t end = i < source.cuts.size() ? source.cuts[i] : weights->rows();
      CpuWeights::Part part{begin, end, gemm_->Slice(*weights->packed, begin, end)};
      if (part.packed == nullptr) {  // small models: real ones have borders at whole slices
        const auto read_part = [&](int64_t row, float* out) { read_row(begin + row, out); };
        RUNAHEAD_ASSIGN_OR_RETURN(part.packed, gemm_->Pack(end - begin, weights->cols(), read_part, weights_arena_));
      }
      weights->parts.push_back(std::move(part));
      begin = end;
    }
  }
  if ((uses & kUseDecode) != 0) weights->stored = std::move(stored);
  return weights;
}

Event CpuDevice::Record(Stream& stream) {
  EventSource source;
  Event event = source.event();
  Cast(stream).Enqueue([source = std::move(source)] { source.Fire(absl::OkStatus()); });
  return event;
}

void CpuDevice::WaitFor(Stream& stream, const Event& event) {
  if (event.fired()) return;
  Cast(stream).Enqueue([event] { event.Wait().IgnoreError(); });
}

absl::Status CpuDevice::Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) {
  RUNAHEAD_RETURN_IF_ERROR(CheckCopy(from, to));
  if (from.size == 0) return absl::OkStatus();
  Pacer* pacer = nullptr;
  if (KindOf(from) != KindOf(to)) pacer = KindOf(to) == MemoryKind::kDevice ? &to_device_ : &to_host_;
  Cast(stream).Enqueue([from, to, pacer] {
    if (pacer == nullptr || pacer->unlimited()) {
      std::memmove(to.data(), from.data(), from.size);
      return;
    }
    for (size_t done = 0; done < from.size; done += kCopyPiece) {
      const size_t bytes = std::min(kCopyPiece, from.size - done);
      std::memcpy(to.data() + done, from.data() + done, bytes);
      pacer->Carry(static_cast<int64_t>(bytes));
    }
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::Embed(Stream& stream, const Weights& table, std::vector<int32_t> ids, bool accumulate,
                              const MutTensor& out) {
  const auto& weights = static_cast<const CpuWeights&>(table);
  if (!weights.stored.has_value()) return absl::FailedPreconditionError("the embedding was not loaded for kUseDecode");
  RUNAHEAD_RETURN_IF_ERROR(CheckEmbed(table, ids, out));
  Cast(stream).Enqueue([this, &stored = *weights.stored, ids = std::move(ids), accumulate, out] {
    rows().Embed(stored, ids, accumulate, out);
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::RmsNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, float eps,
                                const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRmsNorm(kLimits, x, weight, out));
  Cast(stream).Enqueue([this, x, weight, eps, out] { rows().RmsNorm(x, weight, eps, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::LayerNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight,
                                  const ConstTensor& bias, float eps, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLayerNorm(x, weight, bias, out));
  Cast(stream).Enqueue([this, x, weight, bias, eps, out] { rows().LayerNorm(x, weight, bias, eps, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                               const LinearOptions& options, const MutTensor& out) {
  const auto weights = std::static_pointer_cast<const CpuWeights>(std::move(w));
  const bool invariant = options.batch_invariant;
  RUNAHEAD_RETURN_IF_ERROR(
      CheckLinear(kLimits, x, invariant ? invariant_dtype() : compute_dtype(), *weights, options, out));
  if (invariant ? !weights->stored.has_value() : weights->packed == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the weights were not loaded for ", invariant ? "kUseDecode" : "kUsePrefill"));
  }
  const int64_t end_row = options.first_row + out.cols;
  if (!invariant && !(weights->IsBorder(options.first_row) && weights->IsBorder(end_row))) {
    return absl::InvalidArgumentError(absl::StrCat("rows ", options.first_row, " to ", end_row, " of ", weights->rows(),
                                                   ": the weights were not loaded with cuts there"));
  }
  if (x.rows == 0) return absl::OkStatus();
  if (!invariant) {
    Cast(stream).Enqueue([this, weights, x, options, out] { PackedLinear(*weights, x, options, out); });
    return absl::OkStatus();
  }
  Tensor sums = out;
  if (out.dtype != DType::kF32 && (options.bias.ref.buffer != nullptr || options.activation.has_value())) {
    // What bias and activation are still to be applied to stays in f32.
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                              AllocateHostMemory(out.rows * out.cols * sizeof(float), nullptr));
    sums = MakeTensor(BufferRef::Whole(std::move(memory)), DType::kF32, out.rows, out.cols);
  }
  Cast(stream).Enqueue([this, weights, x, options, sums, out] { InvariantLinear(*weights, x, options, sums, out); });
  return absl::OkStatus();
}

void CpuDevice::InvariantLinear(const CpuWeights& w, const ConstTensor& x, const LinearOptions& options,
                                const MutTensor& sums, const MutTensor& out) const {
  w.stored->Matvec(kernels_, *pool_,
                   {.x = x.row<float>(0),
                    .x_stride = x.stride,
                    .m = x.rows,
                    .out = sums.ref.data(),
                    .out_stride = sums.stride,
                    .out_dtype = sums.dtype,
                    .accumulate = options.accumulate,
                    .begin_row = options.first_row,
                    .end_row = options.first_row + out.cols});
  if (options.bias.ref.buffer != nullptr || options.activation.has_value()) {
    rows().FinishLinear(sums, options.bias, options.activation, out);
  }
}

void CpuDevice::PackedLinear(const CpuWeights& w, const ConstTensor& x, const LinearOptions& options,
                             const MutTensor& out) const {
  const float* const bias = options.bias.ref.buffer == nullptr ? nullptr : options.bias.row<float>(0);
  const auto run = [&](const PackedMatrix& packed, int64_t column) {
    gemm_->Run(packed, {.x = x.ref.data(),
                        .x_stride = x.stride,
                        .m = x.rows,
                        .out = out.ref.data() + column * DTypeSize(out.dtype),
                        .out_dtype = out.dtype,
                        .out_stride = out.stride,
                        .accumulate = options.accumulate,
                        .bias = bias == nullptr ? nullptr : bias + column,
                        .activation = options.activation});
  };
  if (out.cols == w.rows()) return run(*w.packed, 0);
  for (const CpuWeights::Part& part : w.parts) {
    const int64_t column = part.begin - options.first_row;
    if (column >= 0 && column < out.cols) run(*part.packed, column);
  }
}

absl::Status CpuDevice::HeadNorm(Stream& stream, const MutTensor& x, int64_t head_dim, const ConstTensor& weight,
                                 float eps) {
  RUNAHEAD_RETURN_IF_ERROR(CheckHeadNorm(x, head_dim, weight));
  Cast(stream).Enqueue([this, x, head_dim, weight, eps] { rows().HeadNorm(x, head_dim, weight, eps); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Rope(Stream& stream, const MutTensor& x, int64_t head_dim, const Rotation& rotation,
                             const KvTable& table, int64_t first_row) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRope(x, head_dim, rotation, table, first_row));
  Cast(stream).Enqueue([=, this, table = Held(table)] { rows().Rope(x, head_dim, rotation, *table, first_row); });
  return absl::OkStatus();
}

absl::Status CpuDevice::StoreQkv(Stream& stream, const ConstTensor& qkv, const AttentionShape& shape,
                                 const MutTensor& q, const KvTable& table, int64_t first_row, const BufferRef& layer) {
  RUNAHEAD_RETURN_IF_ERROR(CheckStoreQkv(kLimits, qkv, shape, q, table, first_row, layer));
  Cast(stream).Enqueue([=, this, table = Held(table)] { rows().StoreQkv(qkv, shape, q, *table, first_row, layer); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                  const KvTable& table, const ConstBufferRef& layer, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttention(kLimits, q, shape, table, layer, out));
  Cast(stream).Enqueue([this, q, shape, table = Held(table), layer, out] {
    RunCpuAttention(*pool_, isa_, {.q = q, .shape = shape, .table = *table, .layer = layer, .out = out});
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                     const KvTable& table, const ConstBufferRef& layer, const MutTensor& partials) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttendPieces(kLimits, q, shape, table, layer, partials));
  Cast(stream).Enqueue([this, q, shape, table = Held(table), layer, partials] {
    AttendCpuPieces(*pool_, isa_, {.q = q, .shape = shape, .table = *table, .layer = layer, .out = partials});
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::MergePieces(Stream& stream, const ConstTensor& partials, const AttentionShape& shape,
                                    const KvTable& table, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckMergePieces(kLimits, partials, shape, table, out));
  Cast(stream).Enqueue(
      [this, partials, shape, table = Held(table), out] { MergeCpuPieces(*pool_, partials, shape, *table, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::GatedActivate(Stream& stream, const ConstTensor& gate_up, Activation activation,
                                      const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckGatedActivate(kLimits, gate_up, out));
  Cast(stream).Enqueue([this, gate_up, activation, out] { rows().GatedActivate(gate_up, activation, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Activate(Stream& stream, const ConstTensor& x, Activation activation, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckActivate(x, out));
  Cast(stream).Enqueue([this, x, activation, out] { rows().Activate(x, activation, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> indices,
                                   const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckGatherRows(x, indices, out));
  Cast(stream).Enqueue([this, x, indices = std::move(indices), out] { rows().GatherRows(x, indices, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::QuantizeKv(Stream& stream, const ConstTensor& kv, const KvQuant& quant, const BufferRef& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckQuantizeKv(kv, quant, out));
  Cast(stream).Enqueue([this, kv, quant, out] { rows().QuantizeKv(kv, quant, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::DequantizeKv(Stream& stream, const ConstBufferRef& from, const KvQuant& quant,
                                     const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckDequantizeKv(from, quant, out));
  Cast(stream).Enqueue([this, from, quant, out] { rows().DequantizeKv(from, quant, out); });
  return absl::OkStatus();
}

absl::Status CpuDevice::TopK(Stream& stream, const ConstTensor& logits, int64_t k, const MutTensor& ids,
                             const MutTensor& values, const MutTensor& log_sum) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTopK(logits, k, ids, values, log_sum));
  Cast(stream).Enqueue([this, logits, k, ids, values, log_sum] { rows().TopK(logits, k, ids, values, log_sum); });
  return absl::OkStatus();
}

absl::Status CpuDevice::Sample(Stream& stream, const ConstTensor& logits, std::vector<SampleParams> params,
                               const MutTensor& counts, const MutTensor& ids, const MutTensor& values) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSample(kLimits, logits, params, counts, ids, values));
  Cast(stream).Enqueue([this, logits, params = std::move(params), counts, ids, values] {
    rows().Sample(logits, params, counts, ids, values);
  });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> NewCpuDevice(const CpuDeviceOptions& options) {
  if (options.threads < 1 || options.threads > kMostThreads) {
    return absl::InvalidArgumentError(absl::StrCat("threads is ", options.threads, ", not 1 to ", kMostThreads));
  }
  if (!(options.emulated_link_gbps >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("emulated_link_gbps is ", options.emulated_link_gbps,
                                                   ": give gigabits per second, or 0 for no pacing"));
  }
  const CpuIsa isa = DetectCpuIsa();
  if (isa == CpuIsa::kBaseline) {
    return absl::UnimplementedError("this CPU (or ONEDNN_MAX_CPU_ISA) lacks AVX2, FMA or F16C, which Runahead needs");
  }
  if (options.compute_dtype == DType::kBF16 && !SupportsBf16(isa)) {
    return absl::UnimplementedError(
        absl::StrCat("compute dtype bf16 needs AVX-512, and this CPU has ", std::string(CpuIsaName(isa)), ": use f32"));
  }
  auto pool = std::make_unique<ThreadPool>(options.threads);
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<Gemm> gemm, Gemm::Make(options.compute_dtype, *pool));
  return std::make_shared<CpuDevice>(options, std::move(pool), std::move(gemm));
}

}  // namespace runahead
