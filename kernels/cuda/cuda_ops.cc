// The ops but attention: checked, then a launch with all that it touches held until it has run.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_device_impl.h"
#include "kernels/cuda/cuda_kv_table.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/kernels.h"

namespace runahead {
namespace {

void Hold(CudaStream& stream, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) stream.Hold(tensor->ref.buffer);
}

// The largest power of two, up to 16, that divides all addresses and the distances between rows.
int AlignmentOf(const Tensor& x, const Tensor& bias, const Tensor& out) {
  uintptr_t bits = 16 | reinterpret_cast<uintptr_t>(x.ref.data()) | reinterpret_cast<uintptr_t>(out.ref.data());
  bits |=
      static_cast<uintptr_t>(x.stride) * DTypeSize(x.dtype) | static_cast<uintptr_t>(out.stride) * DTypeSize(out.dtype);
  if (bias.ref.buffer != nullptr) bits |= reinterpret_cast<uintptr_t>(bias.ref.data());
  return static_cast<int>(bits & -bits);
}

// The same of one address, up to `most`.
int AlignmentOf(const void* data, int most) {
  const uintptr_t bits = static_cast<uintptr_t>(most) | reinterpret_cast<uintptr_t>(data);
  return static_cast<int>(bits & -bits);
}

// Where a copy of `values` lies on the GPU, in stream order.
template <typename T>
absl::StatusOr<const T*> UploadArray(CudaStream& cuda, const std::vector<T>& values) {
  CudaParams params;
  const size_t at = params.Add(values);
  RUNAHEAD_ASSIGN_OR_RETURN(const CudaStream::Uploaded uploaded, cuda.Upload(params));
  return ArrayAt<T>(uploaded.data, at);
}

cudaError_t RunPlan(const std::shared_ptr<const GemmPlan>& plan, const GemmOperands& operands, cudaStream_t stream) {
  return plan->Run(operands, stream);
}

}  // namespace

absl::Status CudaDevice::Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) {
  RUNAHEAD_RETURN_IF_ERROR(CheckCopy(from, to));
  if (from.size == 0) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  cuda.Hold(from.buffer);
  cuda.Hold(to.buffer);
  cuda.Enqueue("Copy", &cudaMemcpyAsync, to.data(), from.data(), from.size, cudaMemcpyDefault);
  return absl::OkStatus();
}

absl::Status CudaDevice::CopyAll(Stream& stream, std::vector<CopyPart> parts) {
  for (const CopyPart& part : parts) RUNAHEAD_RETURN_IF_ERROR(CheckCopy(part.from, part.to));
  CudaStream& cuda = CudaStreamOf(stream);
  CudaCopies copies;
  for (const CopyPart& part : parts) {
    if (part.from.size == 0) continue;
    cuda.Hold(part.from.buffer);
    cuda.Hold(part.to.buffer);
    copies.Add(part.from.data(), part.to.data(), part.from.size);
  }
  cuda.EnqueueCopies(copies);
  return absl::OkStatus();
}

absl::Status CudaDevice::Embed(Stream& stream, const Weights& table, std::vector<int32_t> ids, bool accumulate,
                               const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckEmbed(table, ids, out));
  if (ids.empty()) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  const auto& weights = static_cast<const CudaWeights&>(table);
  RUNAHEAD_ASSIGN_OR_RETURN(const int32_t* const wanted, UploadArray(cuda, ids));
  cuda.Hold(weights.memory.buffer);
  Hold(cuda, {&out});
  cuda.Enqueue("Embed", &LaunchEmbed, weights.matrix(), wanted, accumulate, MatrixOf(out));
  return absl::OkStatus();
}

absl::Status CudaDevice::RmsNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, float eps,
                                 const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRmsNorm(limits(), x, weight, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&x, &weight, &out});
  cuda.Enqueue("RmsNorm", &LaunchRmsNorm, MatrixOf(x), weight.row<float>(0), eps, MatrixOf(out));
  return absl::OkStatus();
}

absl::Status CudaDevice::LayerNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight,
                                   const ConstTensor& bias, float eps, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLayerNorm(x, weight, bias, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&x, &weight, &bias, &out});
  cuda.Enqueue("LayerNorm", &LaunchLayerNorm, MatrixOf(x), weight.row<float>(0), bias.row<float>(0), eps,
               MatrixOf(out));
  return absl::OkStatus();
}

absl::Status CudaDevice::Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                                const LinearOptions& options, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLinear(limits(), x, dtype_, *w, options, out));
  if (x.rows == 0) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  const auto& weights = static_cast<const CudaWeights&>(*w);
  const bool bias = options.bias.ref.buffer != nullptr;
  const std::byte* const rows =
      weights.memory.data() + static_cast<size_t>(options.first_row * w->cols()) * DTypeSize(dtype_);
  const GemmShape shape{.m = x.rows,
                        .n = out.cols,
                        .k = w->cols(),
                        .w_rows = out.cols == w->rows() ? 0 : w->rows(),
                        .dtype = dtype_,
                        .out_dtype = out.dtype,
                        .x_stride = x.stride,
                        .out_stride = out.stride,
                        .alignment = AlignmentOf(x, options.bias, out),
                        .w_alignment = AlignmentOf(rows, GemmShape().w_alignment),
                        .accumulate = options.accumulate,
                        .bias = bias,
                        .activation = options.activation,
                        .batch_invariant = options.batch_invariant,
                        .in_blocks = !options.blocks.empty()};
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<const GemmPlan> plan, gemm_plans_.Find(shape));
  GemmOperands operands{x.ref.data(), rows, bias ? options.bias.row<float>(0) : nullptr, out.ref.data()};
  RUNAHEAD_ASSIGN_OR_RETURN(operands.workspace, cuda.Workspace(plan->workspace_bytes()));
  Hold(cuda, {&x, &options.bias, &out});
  cuda.Hold(weights.memory.buffer);
  cuda.Hold(plan);
  cuda.Enqueue("Linear", &RunPlan, plan, operands);
  return absl::OkStatus();
}

absl::Status CudaDevice::HeadNorm(Stream& stream, const MutTensor& x, int64_t head_dim, const ConstTensor& weight,
                                  float eps) {
  RUNAHEAD_RETURN_IF_ERROR(CheckHeadNorm(x, head_dim, weight));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&x, &weight});
  cuda.Enqueue("HeadNorm", &LaunchHeadNorm, MatrixOf(x), head_dim, weight.row<float>(0), eps);
  return absl::OkStatus();
}

absl::Status CudaDevice::Rope(Stream& stream, const MutTensor& x, int64_t head_dim, const Rotation& rotation,
                              const KvTable& table, int64_t first_row) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRope(x, head_dim, rotation, table, first_row));
  if (x.rows == 0) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  const CudaKvTable& of = CudaTableOf(table);
  Hold(cuda, {&x, &rotation.table});
  cuda.Hold(of.memory);
  cuda.Enqueue("Rope", &LaunchRope, MatrixOf(x), head_dim, MatrixOf(rotation.table), rotation.interleaved,
               of.arrays.positions + first_row);
  return absl::OkStatus();
}

absl::Status CudaDevice::StoreQkv(Stream& stream, const ConstTensor& qkv, const AttentionShape& shape,
                                  const MutTensor& q, const KvTable& table, int64_t first_row, const BufferRef& layer) {
  RUNAHEAD_RETURN_IF_ERROR(CheckStoreQkv(limits(), qkv, shape, q, table, first_row, layer));
  if (qkv.rows == 0) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  const CudaKvTable& of = CudaTableOf(table);
  Hold(cuda, {&qkv, &q});
  cuda.Hold(layer.buffer);
  cuda.Hold(of.memory);
  cuda.Enqueue("StoreQkv", &LaunchStoreQkv, MatrixOf(qkv), MatrixOf(q), layer.data(), of.arrays.own_rows + first_row,
               shape.kv_dtype);
  return absl::OkStatus();
}

absl::Status CudaDevice::GatedActivate(Stream& stream, const ConstTensor& gate_up, Activation activation,
                                       const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckGatedActivate(limits(), gate_up, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&gate_up, &out});
  cuda.Enqueue("GatedActivate", &LaunchGatedActivate, MatrixOf(gate_up), activation, MatrixOf(out));
  return absl::OkStatus();
}

absl::Status CudaDevice::Activate(Stream& stream, const ConstTensor& x, Activation activation, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckActivate(x, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&x, &out});
  cuda.Enqueue("Activate", &LaunchActivate, MatrixOf(x), activation, MatrixOf(out));
  return absl::OkStatus();
}

absl::Status CudaDevice::Scale(Stream& stream, const ConstTensor& x, float factor, bool accumulate,
                               const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckScale(x, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&x, &out});
  cuda.Enqueue("Scale", &LaunchScale, MatrixOf(x), factor, accumulate, MatrixOf(out));
  return absl::OkStatus();
}

absl::Status CudaDevice::SoftCap(Stream& stream, const MutTensor& x, float cap) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSoftCap(x, cap));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&x});
  cuda.Enqueue("SoftCap", &LaunchSoftCap, MatrixOf(x), cap);
  return absl::OkStatus();
}

absl::Status CudaDevice::GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> rows,
                                    const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckGatherRows(x, rows, out));
  if (rows.empty()) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  RUNAHEAD_ASSIGN_OR_RETURN(const int32_t* const at, UploadArray(cuda, rows));
  Hold(cuda, {&x, &out});
  cuda.Enqueue("GatherRows", &LaunchGatherRows, MatrixOf(x), at, MatrixOf(out));
  return absl::OkStatus();
}

// The numbers of the rows are read where the host wrote them: an upload would wait for copies, too.
absl::Status CudaDevice::ExchangeRows(Stream& stream, const ConstTensor& x, std::vector<RowMove> rows,
                                      const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckExchangeRows(x, rows, out));
  if (rows.empty()) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  CudaParams params;
  const size_t at = params.Add(rows);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::byte* const numbers, cuda.Share(params));
  Hold(cuda, {&x, &out});
  cuda.Enqueue("ExchangeRows", &LaunchExchangeRows, MatrixOf(x), ArrayAt<RowMove>(numbers, at),
               static_cast<int64_t>(rows.size()), MatrixOf(out));
  return absl::OkStatus();
}

absl::Status CudaDevice::QuantizeKv(Stream& stream, const ConstTensor& rows, const KvQuant& quant,
                                    const BufferRef& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckQuantizeKv(rows, quant, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&rows});
  cuda.Hold(out.buffer);
  cuda.Enqueue("QuantizeKv", &LaunchQuantizeKv, MatrixOf(rows), quant, out.data());
  return absl::OkStatus();
}

absl::Status CudaDevice::DequantizeKv(Stream& stream, const ConstBufferRef& from, const KvQuant& quant,
                                      const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckDequantizeKv(from, quant, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&out});
  cuda.Hold(from.buffer);
  cuda.Enqueue("DequantizeKv", &LaunchDequantizeKv, from.data(), quant, MatrixOf(out));
  return absl::OkStatus();
}

absl::Status CudaDevice::TopK(Stream& stream, const ConstTensor& logits, int64_t k, const MutTensor& ids,
                              const MutTensor& values, const MutTensor& log_sum) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTopK(logits, k, ids, values, log_sum));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&logits, &ids, &values, &log_sum});
  cuda.Enqueue("TopK", &LaunchTopK, MatrixOf(logits), k, MatrixOf(ids), MatrixOf(values), MatrixOf(log_sum));
  return absl::OkStatus();
}

absl::Status CudaDevice::Sample(Stream& stream, const ConstTensor& logits, std::vector<SampleParams> params,
                                const SampleTables& tables, const MutTensor& ids, const MutTensor& values) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSample(limits(), logits, params, tables, ids, values));
  if (params.empty()) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  RUNAHEAD_ASSIGN_OR_RETURN(const SampleParams* const rows, UploadArray(cuda, params));
  Hold(cuda, {&logits, &tables.counts, &tables.bias, &tables.allowed, &ids, &values});
  const CudaSampleTables of_rows = {MatrixOf(tables.counts), MatrixOf(tables.bias), MatrixOf(tables.allowed)};
  cuda.Enqueue("Sample", &LaunchSample, MatrixOf(logits), rows, of_rows, MatrixOf(ids), MatrixOf(values));
  return absl::OkStatus();
}

}  // namespace runahead
