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
  DType compute_dtype() const override { return compute_dtype_; }
  DType invariant_dtype() const override { return DType::kF32; }
  // Intermediates stay in the second-level cache (512 x 2 x 1536 x 2 bytes is 3 MB on the quick-start model), and
  // scratch memory does not grow with the prompt.
  int64_t gemm_rows() const override { return 512; }

  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override;
  std::unique_ptr<Stream> NewStream(std::string_view name) override { return std::make_unique<CpuStream>(name); }
  absl::StatusOr<std::shared_ptr<const Weights>> LoadWeights(const WeightSource& source, unsigned uses) override;

  Event Record(Stream& stream) override;
  void WaitFor(Stream& stream, const Event& event) override;
  void Call(Stream& stream, std::function<void()> function) override { Cast(stream).Enqueue(std::move(function)); }
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override;
  void BeginStep(Stream&) override {}  // an op costs little to enqueue here
  void EndStep(Stream&) override {}

  absl::Status Embed(Stream& stream, const Weights& table, std::vector<int32_t> ids, const MutTensor& out) override;
  absl::Status RmsNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, float eps,
                       const MutTensor& out) override;
  absl::Status LayerNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                         float eps, const MutTensor& out) override;
  absl::Status Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                      const LinearOptions& options, const MutTensor& out) override;
  absl::Status RopeStore(Stream& stream, const ConstTensor& qkv, const AttentionShape& shape,
                         const ConstTensor& rotation, std::vector<int32_t> positions, const MutTensor& q,
                         std::vector<KvSpan> kv) override;
  absl::Status Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                         std::vector<AttentionSequence> sequences, const MutTensor& out) override;
  absl::Status SwiGlu(Stream& stream, const ConstTensor& gate_up, const MutTensor& out) override;
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

absl::Status CpuDevice::Embed(Stream& stream, const Weights& table, std::vector<int32_t> ids, const MutTensor& out) {
  const auto& weights = static_cast<const CpuWeights&>(table);
  if (!weights.stored.has_value()) return absl::FailedPreconditionError("the embedding was not loaded for kUseDecode");
  RUNAHEAD_RETURN_IF_ERROR(CheckEmbed(table, ids, out));
  Cast(stream).Enqueue(
      [this, &stored = *weights.stored, ids = std::move(ids), out] { rows().Embed(stored, ids, out); });
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
                    .accumulate = options.accumulate});
  if (options.bias.ref.buffer != nullptr || options.activation.has_value()) {
    rows().FinishLinear(sums, options.bias, options.activation, out);
  }
}

void CpuDevice::PackedLinear(const CpuWeights& w, const ConstTensor& x, const LinearOptions& options,
                             const MutTensor& out) const {
  gemm_->Run(*w.packed, {.x = x.ref.data(),
                         .x_stride = x.stride,
                         .m = x.rows,
                         .out = out.ref.data(),
                         .out_dtype = out.dtype,
                         .out_stride = out.stride,
                         .accumulate = options.accumulate,
                         .bias = options.bias.ref.buffer == nullptr ? nullptr : options.bias.row<float>(0),
                         .activation = options.activation});
}

absl::Status CpuDevice::RopeStore(Stream& stream, const ConstTensor& qkv, const AttentionShape& shape,
                                  const ConstTensor& rotation, std::vector<int32_t> positions, const MutTensor& q,
                                  std::vector<KvSpan> kv) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRopeStore(kLimits, qkv, shape, rotation, positions, q, kv));
  Cast(stream).Enqueue([this, qkv, shape, rotation, positions = std::move(positions), q, kv = std::move(kv)] {
    rows().RopeStore(qkv, shape, rotation, positions, q, kv);
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                  std::vector<AttentionSequence> sequences, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttention(kLimits, q, shape, sequences, out));
  Cast(stream).Enqueue([this, q, shape, sequences = std::move(sequences), out] {
    RunCpuAttention(*pool_, isa_,
                    {.q = q.ref.data(),
                     .q_dtype = q.dtype,
                     .q_stride = q.stride,
                     .shape = shape,
                     .sequences = sequences,
                     .out = out.ref.data(),
                     .out_dtype = out.dtype,
                     .out_stride = out.stride});
  });
  return absl::OkStatus();
}

absl::Status CpuDevice::SwiGlu(Stream& stream, const ConstTensor& gate_up, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSwiGlu(kLimits, gate_up, out));
  Cast(stream).Enqueue([this, gate_up, out] { rows().SwiGlu(gate_up, out); });
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
