// The ops that read KV: FlashInfer's kernels for what they take, our plain ones for the rest, soft caps among it. Which
// kernel a sequence gets, and how it is cut, depends on the sequence and the shape alone.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_device_impl.h"
#include "kernels/cuda/cuda_kv_table.h"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/kv_plan.h"

namespace runahead {
namespace {

AttentionArgs ArgsOf(const ConstTensor& q, const AttentionShape& shape, const CudaKvTable& table,
                     const ConstBufferRef& layer) {
  return {.q = MatrixOf(q),
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .head_dim = static_cast<int>(shape.head_dim),
          .kv_dtype = shape.kv_dtype,
          .scale = shape.scale,
          .window = shape.window,
          .soft_cap = shape.soft_cap,
          .layer = layer.data(),
          .pages = table.arrays.pages,
          .page_tokens = table.page_tokens};
}

// Right before the launch that reads them: an earlier one may let go, once it has run, of all that was held until then.
void HoldAll(CudaStream& cuda, const CudaKvTable& table, const Tensor& q, const BufferRef& layer, const Tensor& to) {
  cuda.Hold(q.ref.buffer);
  cuda.Hold(layer.buffer);
  cuda.Hold(to.ref.buffer);
  cuda.Hold(table.memory);
}

// What FlashInfer's kernel for prompts is asked for sequence i; nothing where it does not take it.
std::optional<FlashPrefillArgs> FlashPrefillOf(const AttentionArgs& args, const AttentionShape& shape,
                                               const CudaKvTable& table, size_t i, int64_t query_row,
                                               const CudaMatrix& out) {
  const KvSequence& sequence = table.layout().sequences[i];
  if (shape.soft_cap > 0 || table.first_rows[i] < 0) return std::nullopt;
  const auto rows = [&](CudaMatrix matrix) {
    matrix.data = static_cast<std::byte*>(matrix.data) + query_row * matrix.stride * DTypeSize(matrix.dtype);
    matrix.rows = sequence.queries;
    return matrix;
  };
  const FlashPrefillArgs flash{.q = rows(args.q),
                               .out = rows(out),
                               .heads = args.heads,
                               .kv_heads = args.kv_heads,
                               .head_dim = args.head_dim,
                               .kv_dtype = args.kv_dtype,
                               .scale = args.scale,
                               .kv = args.layer + table.first_rows[i] * shape.kv_row_bytes(),
                               .length = sequence.length,
                               .dense_length = sequence.dense_length,
                               // One that hides nothing is none: kernels without are faster.
                               .window = args.window < sequence.length ? args.window : 0};
  return FlashPrefillTakes(flash) ? std::optional(flash) : std::nullopt;
}

}  // namespace

std::string CudaDevice::SlowHeads(int64_t head_dim) const {
  if (FlashTakes(static_cast<int>(head_dim), dtype_, kv_dtype(), dtype_)) return {};
  return absl::StrCat(
      "attention over heads of ", head_dim, " elements in ", std::string(DTypeName(dtype_)),
      " is slow on this GPU, many times slower than over 64, 128 or 256 in bf16 or f16: only those run on "
      "tensor cores");
}

absl::StatusOr<std::shared_ptr<const KvTable>> CudaDevice::MakeKvTable(Stream& stream, KvLayout layout) {
  RUNAHEAD_RETURN_IF_ERROR(CheckKvLayout(layout));
  KvPlan plan = PlanKv(layout, CudaStreamOf(stream).in_step());
  auto table = std::make_shared<CudaKvTable>(std::move(layout), static_cast<int64_t>(plan.pieces.size()));
  // Those that grow from step to step come last, so that the others stay where they are.
  CudaParams params;
  const size_t positions = params.Add(table->positions()), own_rows = params.Add(table->own_rows());
  const size_t items = params.Add(plan.items), ranges = params.Add(plan.ranges);
  const size_t pieces = params.Add(plan.pieces), work = params.Add(plan.work), pages = params.Add(plan.pages);
  RUNAHEAD_ASSIGN_OR_RETURN(CudaStream::Uploaded uploaded, CudaStreamOf(stream).Upload(params));
  table->arrays = {ArrayAt<int32_t>(uploaded.data, positions),
                   ArrayAt<int64_t>(uploaded.data, own_rows),
                   ArrayAt<AttentionItem>(uploaded.data, items),
                   ArrayAt<PieceRange>(uploaded.data, ranges),
                   {ArrayAt<AttentionPiece>(uploaded.data, pieces), ArrayAt<PieceRun>(uploaded.data, work),
                    static_cast<int64_t>(plan.work.size()), plan.most_shared},
                   ArrayAt<int64_t>(uploaded.data, pages)};
  table->memory = std::move(uploaded.memory);
  table->first_rows = std::move(plan.first_rows);
  table->page_tokens = plan.page_tokens;
  table->most_queries = plan.most_queries;
  return table;
}

absl::Status CudaDevice::Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                   const KvTable& table, const ConstBufferRef& layer, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttention(limits(), q, shape, table, layer, out));
  if (table.rows() == 0) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  const CudaKvTable& of = CudaTableOf(table);
  const AttentionArgs args = ArgsOf(q, shape, of, layer);
  const CudaMatrix to = MatrixOf(out);
  const auto enqueue = [&](const auto&... what) {
    HoldAll(cuda, of, q, layer, out);
    cuda.Enqueue("Attention", what...);
  };
  const std::vector<KvSequence>& sequences = of.layout().sequences;
  if (shape.soft_cap > 0 || !FlashTakes(args.head_dim, q.dtype, shape.kv_dtype, out.dtype)) {
    enqueue(&LaunchPlainAttention, args, of.arrays.items, static_cast<int>(sequences.size()), of.most_queries, to);
    return absl::OkStatus();
  }
  int64_t query_row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (const auto flash = FlashPrefillOf(args, shape, of, i, query_row, to)) {
      enqueue(&LaunchFlashPrefill, *flash);
    } else {
      enqueue(&LaunchPlainAttention, args, of.arrays.items + i, 1, sequences[i].queries, to);
    }
    query_row += sequences[i].queries;
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                      const KvTable& table, const ConstBufferRef& layer, const MutTensor& partials) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttendPieces(limits(), q, shape, table, layer, partials));
  // A table that has nothing may come with a layer that is none.
  if (table.base_rows() == 0) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  const CudaKvTable& of = CudaTableOf(table);
  const AttentionArgs args = ArgsOf(q, shape, of, layer);
  const CudaMatrix to = MatrixOf(partials);
  const bool flash = FlashPiecesTake(args);
  void* workspace = nullptr;
  if (flash) {
    RUNAHEAD_ASSIGN_OR_RETURN(workspace, cuda.Workspace(FlashPiecesWorkspaceBytes(args, of.arrays.work, to)));
  }
  HoldAll(cuda, of, q, layer, partials);
  if (flash) {
    cuda.Enqueue("AttendPieces", &LaunchFlashPieces, args, of.arrays.work, to, static_cast<std::byte*>(workspace));
  } else {
    cuda.Enqueue("AttendPieces", &LaunchPlainPieces, args, of.arrays.work, to);
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::MergePieces(Stream& stream, const ConstTensor& partials, const AttentionShape& shape,
                                     const KvTable& table, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckMergePieces(limits(), partials, shape, table, out));
  if (table.rows() == 0) return absl::OkStatus();
  CudaStream& cuda = CudaStreamOf(stream);
  const CudaKvTable& of = CudaTableOf(table);
  cuda.Hold(partials.ref.buffer);
  cuda.Hold(out.ref.buffer);
  cuda.Hold(of.memory);
  cuda.Enqueue("MergePieces", &LaunchMergePieces, MatrixOf(partials), of.arrays.ranges, static_cast<int>(shape.heads),
               MatrixOf(out));
  return absl::OkStatus();
}

}  // namespace runahead
