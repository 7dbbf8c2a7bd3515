// Attention: FlashInfer's kernels for what they take, our plain one for the rest.
#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_device_impl.h"
#include "kernels/cuda/kernels.h"

namespace runahead {
namespace {

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

absl::Status EnqueuePlain(CudaStream& cuda, const ConstTensor& q, const AttentionShape& shape, const PlainBatch& batch,
                          const MutTensor& out) {
  CudaParams params;
  const size_t items_at = params.Add(batch.items), spans_at = params.Add(batch.spans);
  RUNAHEAD_ASSIGN_OR_RETURN(const std::byte* arrays, cuda.Upload(params));
  const PlainAttentionArgs args{.q = MatrixOf(q),
                                .out = MatrixOf(out),
                                .heads = static_cast<int>(shape.heads),
                                .kv_heads = static_cast<int>(shape.kv_heads),
                                .head_dim = static_cast<int>(shape.head_dim),
                                .kv_dtype = shape.kv_dtype,
                                .scale = shape.scale,
                                .items = ArrayAt<AttentionItem>(arrays, items_at),
                                .spans = ArrayAt<AttentionSpan>(arrays, spans_at),
                                .item_count = static_cast<int>(batch.items.size()),
                                .most_queries = batch.most_queries};
  const OpKey key("plain_attention", args.q, args.out, args.heads, args.kv_heads, args.head_dim, args.kv_dtype,
                  args.scale, args.items, args.spans, args.item_count, args.most_queries);
  cuda.Enqueue(key, {"Attention", [=, s = cuda.get()] { return LaunchPlainAttention(args, s); }});
  return absl::OkStatus();
}

}  // namespace

absl::Status CudaDevice::Attention(Stream& stream, const ConstTensor& q, const AttentionShape& shape,
                                   std::vector<AttentionSequence> sequences, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttention(limits(), q, shape, sequences, out));
  CudaStream& cuda = CudaStreamOf(stream);
  cuda.Hold(q.ref.buffer);
  cuda.Hold(out.ref.buffer);
  PlainBatch plain;
  for (const AttentionSequence& sequence : sequences) {
    for (const KvSpan& span : sequence.kv) cuda.Hold(span.rows.buffer);
    if (sequence.queries > 0) plain.Add(sequence);
  }
  if (plain.items.empty()) return absl::OkStatus();
  return EnqueuePlain(cuda, q, shape, plain, out);
}

}  // namespace runahead
