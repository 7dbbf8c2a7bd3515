// The ops but attention: checked, then a launch with all that it touches held until it has run.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_device_impl.h"
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

// Where each of `tokens` rows of the concatenation of `kv` lies.
std::vector<std::byte*> KvRows(const std::vector<KvSpan>& kv, int64_t tokens, size_t row_bytes) {
  std::vector<std::byte*> rows;
  rows.reserve(tokens);
  for (const KvSpan& span : kv) {
    for (int64_t i = 0; i < span.tokens && static_cast<int64_t>(rows.size()) < tokens; ++i) {
      rows.push_back(span.rows.data() + i * row_bytes);
    }
  }
  return rows;
}

// Where a copy of `values` lies on the GPU, in stream order.
template <typename T>
absl::StatusOr<const T*> UploadArray(CudaStream& cuda, const std::vector<T>& values) {
  CudaParams params;
  const size_t at = params.Add(values);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::byte* arrays, cuda.Upload(params));
  return ArrayAt<T>(arrays, at);
}

}  // namespace

absl::Status CudaDevice::Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) {
  RUNAHEAD_RETURN_IF_ERROR(CheckCopy(from, to));
  if (from.size == 0) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  cuda.Hold(from.buffer);
  cuda.Hold(to.buffer);
  const auto copy = [to = to.data(), from = from.data(), bytes = from.size, at = cuda.get()] {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, at);
  };
  cuda.Enqueue(OpKey("copy", from.data(), to.data(), from.size), {"Copy", copy});
  return absl::OkStatus();
}

absl::Status CudaDevice::Embed(Stream& stream, const Weights& table, std::vector<int32_t> ids, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckEmbed(table, ids, out));
  if (ids.empty()) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  const auto& weights = static_cast<const CudaWeights&>(table);
  RUNAHEAD_ASSIGN_OR_RETURN(const int32_t* const wanted, UploadArray(cuda, ids));
  cuda.Hold(weights.memory.buffer);
  Hold(cuda, {&out});
  const CudaMatrix rows = weights.matrix(), to = MatrixOf(out);
  cuda.Enqueue(OpKey("embed", rows, wanted, to),
               {"Embed", [=, s = cuda.get()] { return LaunchEmbed(rows, wanted, to, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::RmsNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight, float eps,
                                 const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRmsNorm(limits(), x, weight, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&x, &weight, &out});
  const CudaMatrix from = MatrixOf(x), to = MatrixOf(out);
  const float* const w = weight.row<float>(0);
  cuda.Enqueue(OpKey("rms_norm", from, w, eps, to),
               {"RmsNorm", [=, s = cuda.get()] { return LaunchRmsNorm(from, w, eps, to, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::LayerNorm(Stream& stream, const ConstTensor& x, const ConstTensor& weight,
                                   const ConstTensor& bias, float eps, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLayerNorm(x, weight, bias, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&x, &weight, &bias, &out});
  const CudaMatrix from = MatrixOf(x), to = MatrixOf(out);
  const float *const w = weight.row<float>(0), *const b = bias.row<float>(0);
  cuda.Enqueue(OpKey("layer_norm", from, w, b, eps, to),
               {"LayerNorm", [=, s = cuda.get()] { return LaunchLayerNorm(from, w, b, eps, to, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                                const LinearOptions& options, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLinear(limits(), x, dtype_, *w, options, out));
  if (x.rows == 0) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  const auto& weights = static_cast<const CudaWeights&>(*w);
  const bool bias = options.bias.ref.buffer != nullptr;
  const GemmShape shape{.m = x.rows,
                        .n = w->rows(),
                        .k = w->cols(),
                        .dtype = dtype_,
                        .out_dtype = out.dtype,
                        .x_stride = x.stride,
                        .out_stride = out.stride,
                        .alignment = AlignmentOf(x, options.bias, out),
                        .accumulate = options.accumulate,
                        .bias = bias,
                        .activation = options.activation,
                        .batch_invariant = options.batch_invariant};
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<const GemmPlan> plan, gemm_plans_.Find(shape));
  GemmOperands operands{x.ref.data(), weights.memory.data(), bias ? options.bias.row<float>(0) : nullptr,
                        out.ref.data()};
  RUNAHEAD_ASSIGN_OR_RETURN(operands.workspace, cuda.Workspace(plan->workspace_bytes()));
  Hold(cuda, {&x, &options.bias, &out});
  cuda.Hold(weights.memory.buffer);
  const OpKey key("linear", operands.x, operands.w, operands.bias, operands.out, operands.workspace, shape.m, shape.n,
                  shape.k, shape.dtype, shape.out_dtype, shape.x_stride, shape.out_stride, shape.alignment,
                  shape.accumulate, shape.batch_invariant, shape.activation.has_value(),
                  shape.activation.value_or(Activation::kRelu));
  cuda.Hold(plan);
  cuda.Enqueue(key, {"Linear", [=, s = cuda.get()] { return plan->Run(operands, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::RopeStore(Stream& stream, const ConstTensor& qkv, const AttentionShape& shape,
                                   const ConstTensor& rotation, std::vector<int32_t> positions, const MutTensor& q,
                                   std::vector<KvSpan> kv) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRopeStore(limits(), qkv, shape, rotation, positions, q, kv));
  if (positions.empty()) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  CudaParams params;
  const size_t positions_at = params.Add(positions);
  const size_t rows_at = params.Add(KvRows(kv, qkv.rows, shape.kv_row_bytes()));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::byte* arrays, cuda.Upload(params));
  Hold(cuda, {&qkv, &rotation, &q});
  for (const KvSpan& span : kv) cuda.Hold(span.rows.buffer);
  const RopeStoreArgs args{.qkv = MatrixOf(qkv),
                           .rotation = rotation.row<float>(0),
                           .positions = ArrayAt<int32_t>(arrays, positions_at),
                           .heads = static_cast<int>(shape.heads),
                           .kv_heads = static_cast<int>(shape.kv_heads),
                           .head_dim = static_cast<int>(shape.head_dim),
                           .q = MatrixOf(q),
                           .kv_rows = ArrayAt<std::byte*>(arrays, rows_at),
                           .kv_dtype = shape.kv_dtype};
  const OpKey key("rope_store", args.qkv, args.rotation, args.positions, args.heads, args.kv_heads, args.head_dim,
                  args.q, args.kv_rows, args.kv_dtype);
  cuda.Enqueue(key, {"RopeStore", [=, s = cuda.get()] { return LaunchRopeStore(args, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::SwiGlu(Stream& stream, const ConstTensor& gate_up, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSwiGlu(limits(), gate_up, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&gate_up, &out});
  const CudaMatrix from = MatrixOf(gate_up), to = MatrixOf(out);
  cuda.Enqueue(OpKey("swiglu", from, to), {"SwiGlu", [=, s = cuda.get()] { return LaunchSwiGlu(from, to, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::Activate(Stream& stream, const ConstTensor& x, Activation activation, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckActivate(x, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&x, &out});
  const CudaMatrix from = MatrixOf(x), to = MatrixOf(out);
  cuda.Enqueue(OpKey("activate", from, activation, to),
               {"Activate", [=, s = cuda.get()] { return LaunchActivate(from, activation, to, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::GatherRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> rows,
                                    const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckGatherRows(x, rows, out));
  if (rows.empty()) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  RUNAHEAD_ASSIGN_OR_RETURN(const int32_t* const at, UploadArray(cuda, rows));
  Hold(cuda, {&x, &out});
  const CudaMatrix from = MatrixOf(x), to = MatrixOf(out);
  cuda.Enqueue(OpKey("gather_rows", from, at, to),
               {"GatherRows", [=, s = cuda.get()] { return LaunchGatherRows(from, at, to, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::QuantizeKv(Stream& stream, const ConstTensor& rows, const KvQuant& quant,
                                    const BufferRef& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckQuantizeKv(rows, quant, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&rows});
  cuda.Hold(out.buffer);
  const CudaMatrix from = MatrixOf(rows);
  std::byte* const to = out.data();
  cuda.Enqueue(OpKey("quantize_kv", from, quant.bits, quant.group, to),
               {"QuantizeKv", [=, s = cuda.get()] { return LaunchQuantizeKv(from, quant, to, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::DequantizeKv(Stream& stream, const ConstBufferRef& from, const KvQuant& quant,
                                      const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckDequantizeKv(from, quant, out));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&out});
  cuda.Hold(from.buffer);
  const std::byte* const stored = from.data();
  const CudaMatrix to = MatrixOf(out);
  cuda.Enqueue(OpKey("dequantize_kv", stored, quant.bits, quant.group, to),
               {"DequantizeKv", [=, s = cuda.get()] { return LaunchDequantizeKv(stored, quant, to, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::TopK(Stream& stream, const ConstTensor& logits, int64_t k, const MutTensor& ids,
                              const MutTensor& values, const MutTensor& log_sum) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTopK(logits, k, ids, values, log_sum));
  CudaStream& cuda = CudaStreamOf(stream);
  Hold(cuda, {&logits, &ids, &values, &log_sum});
  const CudaMatrix from = MatrixOf(logits), top = MatrixOf(ids), best = MatrixOf(values), sum = MatrixOf(log_sum);
  cuda.Enqueue(OpKey("top_k", from, k, top, best, sum),
               {"TopK", [=, s = cuda.get()] { return LaunchTopK(from, static_cast<int>(k), top, best, sum, s); }});
  return absl::OkStatus();
}

absl::Status CudaDevice::Sample(Stream& stream, const ConstTensor& logits, std::vector<SampleParams> params,
                                const MutTensor& counts, const MutTensor& ids, const MutTensor& values) {
  RUNAHEAD_RETURN_IF_ERROR(CheckSample(limits(), logits, params, counts, ids, values));
  if (params.empty()) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  RUNAHEAD_ASSIGN_OR_RETURN(const SampleParams* const rows, UploadArray(cuda, params));
  Hold(cuda, {&logits, &counts, &ids, &values});
  const CudaMatrix from = MatrixOf(logits), seen = MatrixOf(counts), to = MatrixOf(ids), chosen = MatrixOf(values);
  cuda.Enqueue(OpKey("sample", from, rows, seen, to, chosen),
               {"Sample", [=, s = cuda.get()] { return LaunchSample(from, rows, seen, to, chosen, s); }});
  return absl::OkStatus();
}

}  // namespace runahead
