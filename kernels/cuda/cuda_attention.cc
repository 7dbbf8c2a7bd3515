// Attention: FlashInfer's kernels for what they take, our plain one for the rest. Which kernel a sequence gets, and how
// it is cut, depends on the sequence alone.
#include <algorithm>
#include <span>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_device_impl.h"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/flash_decode_plan.h"
#include "kernels/cuda/kernels.h"

namespace runahead {
namespace {

// One call of Attention.
struct AttentionCall {
  CudaStream& cuda;
  const BufferRef &q_ref, &out_ref;
  CudaMatrix q, out;
  int heads, kv_heads, head_dim;
  const AttentionShape& shape;

  // Right before the launch that reads them: an earlier one may let go, once it has run, of all that was held until
  // then.
  void Hold(std::span<const AttentionSequence* const> sequences) const {
    cuda.Hold(q_ref.buffer);
    cuda.Hold(out_ref.buffer);
    for (const AttentionSequence* sequence : sequences) {
      for (const KvSpan& span : sequence->kv) cuda.Hold(span.rows.buffer);
    }
  }
};

using Sequences = std::vector<const AttentionSequence*>;

// The arrays of a launch of the plain kernel.
struct PlainBatch {
  std::vector<AttentionItem> items;
  std::vector<AttentionSpan> spans;
  int64_t most_queries = 0;

  void Add(const AttentionSequence& sequence) {
    AttentionItem item{sequence.query_row, sequence.queries, sequence.length, static_cast<int32_t>(spans.size()), 0};
    int64_t first = 0;
    for (const KvSpan& span : sequence.kv) {
      if (first >= sequence.length) break;
      spans.push_back({span.rows.data(), first, span.tokens});
      first += span.tokens;
      ++item.span_count;
    }
    items.push_back(item);
    most_queries = std::max(most_queries, sequence.queries);
  }
};

absl::Status EnqueuePlain(const AttentionCall& call, const Sequences& sequences) {
  if (sequences.empty()) return absl::OkStatus();
  call.Hold(sequences);
  PlainBatch batch;
  for (const AttentionSequence* sequence : sequences) batch.Add(*sequence);
  CudaParams params;
  const size_t items_at = params.Add(batch.items), spans_at = params.Add(batch.spans);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::byte* arrays, call.cuda.Upload(params));
  const PlainAttentionArgs args{.q = call.q,
                                .out = call.out,
                                .heads = call.heads,
                                .kv_heads = call.kv_heads,
                                .head_dim = call.head_dim,
                                .kv_dtype = call.shape.kv_dtype,
                                .scale = call.shape.scale,
                                .items = ArrayAt<AttentionItem>(arrays, items_at),
                                .spans = ArrayAt<AttentionSpan>(arrays, spans_at),
                                .item_count = static_cast<int>(batch.items.size()),
                                .most_queries = batch.most_queries};
  const OpKey key("plain_attention", args.q, args.out, args.heads, args.kv_heads, args.head_dim, args.kv_dtype,
                  args.scale, args.items, args.spans, args.item_count, args.most_queries);
  call.cuda.Enqueue(key, {"Attention", [=, s = call.cuda.get()] { return LaunchPlainAttention(args, s); }});
  return absl::OkStatus();
}

FlashDecodeSequence DecodeSequenceOf(const AttentionSequence& sequence) {
  FlashDecodeSequence decode{sequence.query_row, sequence.length, {}};
  for (const KvSpan& span : sequence.kv) decode.spans.push_back({span.rows.data(), span.tokens});
  return decode;
}

// `planned`: the same sequences.
absl::Status EnqueueDecode(const AttentionCall& call, const Sequences& sequences,
                           const std::vector<FlashDecodeSequence>& planned) {
  if (sequences.empty()) return absl::OkStatus();
  call.Hold(sequences);
  const FlashDecodePlan plan = PlanFlashDecode(planned, call.shape.kv_row_bytes());
  CudaParams params;
  const size_t rows_at = params.Add(plan.rows), pieces_at = params.Add(plan.pieces), pages_at = params.Add(plan.pages);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::byte* arrays, call.cuda.Upload(params));
  FlashDecodeArgs args{.q = call.q,
                       .out = call.out,
                       .heads = call.heads,
                       .kv_heads = call.kv_heads,
                       .head_dim = call.head_dim,
                       .kv_dtype = call.shape.kv_dtype,
                       .scale = call.shape.scale,
                       .rows = ArrayAt<FlashDecodeRow>(arrays, rows_at),
                       .pieces = ArrayAt<FlashDecodePiece>(arrays, pieces_at),
                       .pages = ArrayAt<int64_t>(arrays, pages_at),
                       .row_count = static_cast<int64_t>(plan.rows.size()),
                       .piece_count = static_cast<int64_t>(plan.pieces.size()),
                       .page_tokens = plan.page_tokens};
  RUNAHEAD_ASSIGN_OR_RETURN(void* const workspace, call.cuda.Workspace(FlashDecodeWorkspaceBytes(
                                                       args.piece_count, call.heads, call.head_dim)));
  args.workspace = static_cast<std::byte*>(workspace);
  const OpKey key("flash_decode", args.q, args.out, args.heads, args.kv_heads, args.head_dim, args.kv_dtype, args.scale,
                  args.rows, args.pieces, args.pages, args.row_count, args.piece_count, args.page_tokens,
                  args.workspace);
  call.cuda.Enqueue(key, {"Attention", [=, s = call.cuda.get()] { return LaunchFlashDecode(args, s); }});
  return absl::OkStatus();
}

// False when the prefill kernels do not take the sequence.
bool EnqueuePrefill(const AttentionCall& call, const AttentionSequence& sequence) {
  const auto rows = [&](CudaMatrix matrix) {
    matrix.data = static_cast<std::byte*>(matrix.data) + sequence.query_row * matrix.stride * DTypeSize(matrix.dtype);
    matrix.rows = sequence.queries;
    return matrix;
  };
  if (sequence.kv.front().tokens < std::max(sequence.length, sequence.dense_length)) return false;
  const FlashPrefillArgs args{.q = rows(call.q),
                              .out = rows(call.out),
                              .heads = call.heads,
                              .kv_heads = call.kv_heads,
                              .head_dim = call.head_dim,
                              .kv_dtype = call.shape.kv_dtype,
                              .scale = call.shape.scale,
                              .kv = sequence.kv.front().rows.data(),
                              .length = sequence.length,
                              .dense_length = sequence.dense_length};
  if (!FlashPrefillTakes(args)) return false;
  const AttentionSequence* const one[] = {&sequence};
  call.Hold(one);
  const OpKey key("flash_prefill", args.q, args.out, args.heads, args.kv_heads, args.head_dim, args.kv_dtype,
                  args.scale, args.kv, args.length, args.dense_length);
  call.cuda.Enqueue(key, {"Attention", [=, s = call.cuda.get()] { return LaunchFlashPrefill(args, s); }});
  return true;
}

}  // namespace

absl::Status CudaDevice::Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                   std::vector<AttentionSequence> sequences, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttention(limits(), q, shape, sequences, out));
  const AttentionCall call{CudaStreamOf(stream),
                           q.ref,
                           out.ref,
                           MatrixOf(q),
                           MatrixOf(out),
                           static_cast<int>(shape.heads),
                           static_cast<int>(shape.kv_heads),
                           static_cast<int>(shape.head_dim),
                           shape};
  const bool decode_takes =
      FlashDecodeTakes(call.q, call.out, call.heads, call.kv_heads, call.head_dim, shape.kv_dtype);
  Sequences decode, plain;
  std::vector<FlashDecodeSequence> planned;
  for (const AttentionSequence& sequence : sequences) {
    if (sequence.queries == 0) continue;
    if (sequence.queries == 1 && decode_takes) {
      FlashDecodeSequence single = DecodeSequenceOf(sequence);
      if (FlashDecodeTakes(single)) {
        decode.push_back(&sequence);
        planned.push_back(std::move(single));
        continue;
      }
    }
    if (sequence.queries == 1 || !EnqueuePrefill(call, sequence)) {
      plain.push_back(&sequence);
    }
  }
  RUNAHEAD_RETURN_IF_ERROR(EnqueueDecode(call, decode, planned));
  return EnqueuePlain(call, plain);
}

}  // namespace runahead
