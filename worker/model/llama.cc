#include "worker/model/llama.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Rows [begin, begin + count) of what the spans concatenate.
std::vector<KvSpan> SliceSpans(const std::vector<KvSpan>& spans, size_t row_bytes, int64_t begin, int64_t count) {
  std::vector<KvSpan> slice;
  for (const KvSpan& span : spans) {
    if (count == 0) break;
    if (begin >= span.tokens) {
      begin -= span.tokens;
      continue;
    }
    const int64_t take = std::min(count, span.tokens - begin);
    slice.push_back({span.rows.Slice(begin * row_bytes, take * row_bytes), take});
    begin = 0;
    count -= take;
  }
  RUNAHEAD_CHECK(count == 0);
  return slice;
}

// What attention computes for query row `row` alone, which is row `query_row` of its queries.
AttentionSequence OneQuery(const std::vector<AttentionSequence>& sequences, int64_t row, int64_t query_row) {
  for (const AttentionSequence& sequence : sequences) {
    const int64_t query = row - sequence.query_row;
    if (query < 0 || query >= sequence.queries) continue;
    return {query_row, 1, sequence.length - (sequence.queries - 1 - query), sequence.kv};
  }
  RUNAHEAD_CHECK(false);
}

}  // namespace

// The activations of one pass; [rows, ...] of the whole batch, or of a chunk of it, which is as long as Linear likes
// best.
struct LlamaModel::Pass {
  Stream& stream;
  const ForwardBatch& batch;
  LinearOptions linear;      // out = x * w^T
  LinearOptions accumulate;  // out += x * w^T
  Tensor x;                  // f32 [rows, hidden], the residual stream
  Tensor q;                  // [rows, heads*head_dim]
  Tensor attended;           // [rows, heads*head_dim]
  Tensor normed;             // [chunk, hidden]
  Tensor qkv;                // f32 [chunk, (heads + 2*kv_heads)*head_dim]
  Tensor gate_up;            // [chunk, 2*ffn]
  Tensor ffn;                // [chunk, ffn]
};

LlamaModel::LlamaModel(ModelConfig config, std::shared_ptr<Device> device, LlamaWeights weights)
    : config_(std::move(config)), device_(std::move(device)), weights_(std::move(weights)) {
  shape_.heads = config_.heads;
  shape_.kv_heads = config_.kv_heads;
  shape_.head_dim = config_.head_dim;
  shape_.kv_dtype = device_->compute_dtype();
  shape_.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
}

absl::Status LlamaModel::Check(const ForwardBatch& batch) const {
  const int64_t rows = static_cast<int64_t>(batch.ids.size());
  if (rows == 0 || batch.positions.size() != batch.ids.size()) {
    return absl::InvalidArgumentError("a batch needs at least one row and a position for each");
  }
  for (int64_t row = 0; row < rows; ++row) {
    if (batch.ids[row] < 0 || batch.ids[row] >= config_.vocab || batch.positions[row] < 0 ||
        batch.positions[row] >= config_.context_length) {
      return absl::OutOfRangeError(absl::StrCat("row ", row, ": token ", batch.ids[row], " at position ",
                                                batch.positions[row], " does not fit a vocabulary of ", config_.vocab,
                                                " and a context of ", config_.context_length));
    }
  }
  for (int64_t row : batch.logit_rows) {
    if (row < 0 || row >= rows) return absl::OutOfRangeError(absl::StrCat("logits asked for row ", row, " of ", rows));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> LlamaModel::Forward(Stream& stream, ForwardScratch& scratch, const ForwardBatch& batch,
                                           KvPort& port) const {
  RUNAHEAD_RETURN_IF_ERROR(Check(batch));
  int64_t rows = static_cast<int64_t>(batch.ids.size());
  const int64_t chunk = std::min(rows, device_->gemm_rows());
  const int64_t wanted = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t query_dim = config_.heads * config_.head_dim;
  const DType act = batch.batch_invariant ? device_->invariant_dtype() : device_->compute_dtype();

  const LinearOptions linear{.batch_invariant = batch.batch_invariant};
  const LinearOptions accumulate{.accumulate = true, .batch_invariant = batch.batch_invariant};
  Pass pass{stream, batch, linear, accumulate, {}, {}, {}, {}, {}, {}, {}};
  RUNAHEAD_ASSIGN_OR_RETURN(pass.x, scratch.Get(0, DType::kF32, rows, config_.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(pass.q, scratch.Get(1, act, rows, query_dim));
  RUNAHEAD_ASSIGN_OR_RETURN(pass.attended, scratch.Get(2, act, rows, query_dim));
  RUNAHEAD_ASSIGN_OR_RETURN(pass.normed, scratch.Get(3, act, chunk, config_.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(pass.qkv, scratch.Get(4, DType::kF32, chunk, query_dim + 2 * config_.kv_dim()));
  RUNAHEAD_ASSIGN_OR_RETURN(pass.gate_up, scratch.Get(5, act, chunk, 2 * config_.ffn));
  RUNAHEAD_ASSIGN_OR_RETURN(pass.ffn, scratch.Get(6, act, chunk, config_.ffn));

  RUNAHEAD_RETURN_IF_ERROR(device_->Embed(stream, *weights_.embedding, batch.ids, pass.x));
  for (int64_t index = 0; index < config_.layers; ++index) {
    const LlamaLayer& layer = weights_.layers[index];
    const bool last = index + 1 == config_.layers;
    RUNAHEAD_RETURN_IF_ERROR(port.Begin(index));
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<KvSpan> own, port.Own(index));
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      RUNAHEAD_RETURN_IF_ERROR(ProjectQkv(layer, pass, begin, std::min(chunk, rows - begin), own));
    }
    RUNAHEAD_ASSIGN_OR_RETURN(std::vector<AttentionSequence> sequences, port.Publish(index, stream));
    if (last && wanted < rows) {
      // After its KV the last layer matters only to the rows whose logits are wanted.
      if (wanted == 0) return Tensor{};
      RUNAHEAD_ASSIGN_OR_RETURN(sequences, KeepWanted(sequences, pass, scratch));
      rows = wanted;
    }
    RUNAHEAD_RETURN_IF_ERROR(device_->Attention(stream, pass.q, shape_, std::move(sequences), pass.attended));
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      RUNAHEAD_RETURN_IF_ERROR(Mlp(layer, pass, begin, std::min(chunk, rows - begin)));
    }
  }

  return Logits(pass, scratch);
}

// Leaves the wanted rows of x and q, and what attention computes for them.
absl::StatusOr<std::vector<AttentionSequence>> LlamaModel::KeepWanted(const std::vector<AttentionSequence>& sequences,
                                                                      Pass& pass, ForwardScratch& scratch) const {
  const std::vector<int64_t>& wanted = pass.batch.logit_rows;
  const int64_t count = static_cast<int64_t>(wanted.size());
  const std::vector<int32_t> rows(wanted.begin(), wanted.end());
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor x, scratch.Get(7, pass.x.dtype, count, pass.x.cols));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor q, scratch.Get(8, pass.q.dtype, count, pass.q.cols));
  RUNAHEAD_RETURN_IF_ERROR(device_->GatherRows(pass.stream, pass.x, rows, x));
  RUNAHEAD_RETURN_IF_ERROR(device_->GatherRows(pass.stream, pass.q, rows, q));
  pass.x = x;
  pass.q = q;
  pass.attended = pass.attended.Rows(0, count);
  std::vector<AttentionSequence> queries;
  for (int64_t i = 0; i < count; ++i) queries.push_back(OneQuery(sequences, wanted[i], i));
  return queries;
}

// norm(x) * Whead. The head is applied to few rows: it takes the batch-invariant form always.
absl::StatusOr<Tensor> LlamaModel::Logits(const Pass& pass, ForwardScratch& scratch) const {
  const int64_t rows = pass.x.rows;
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed, scratch.Get(9, device_->invariant_dtype(), rows, config_.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor logits, scratch.Get(10, DType::kF32, rows, config_.vocab));
  RUNAHEAD_RETURN_IF_ERROR(device_->RmsNorm(pass.stream, pass.x, weights_.output_norm, config_.norm_eps, normed));
  RUNAHEAD_RETURN_IF_ERROR(device_->Linear(pass.stream, normed, weights_.head, {.batch_invariant = true}, logits));
  return logits;
}

// x -> norm -> Q, K, V; rotated; K and V to where the port keeps them.
absl::Status LlamaModel::ProjectQkv(const LlamaLayer& layer, const Pass& pass, int64_t begin, int64_t count,
                                    const std::vector<KvSpan>& own) const {
  const Tensor normed = pass.normed.Rows(0, count);
  const Tensor qkv = pass.qkv.Rows(0, count);
  const auto first = pass.batch.positions.begin() + begin;
  RUNAHEAD_RETURN_IF_ERROR(
      device_->RmsNorm(pass.stream, pass.x.Rows(begin, count), layer.attention_norm, config_.norm_eps, normed));
  RUNAHEAD_RETURN_IF_ERROR(device_->Linear(pass.stream, normed, layer.qkv, pass.linear, qkv));
  return device_->RopeStore(pass.stream, qkv, shape_, weights_.rotation, std::vector<int32_t>(first, first + count),
                            pass.q.Rows(begin, count),
                            SliceSpans(own, static_cast<size_t>(shape_.kv_row_bytes()), begin, count));
}

// x += attended * Wo;  x += (silu(norm(x) * Wgate) . (norm(x) * Wup)) * Wdown.
absl::Status LlamaModel::Mlp(const LlamaLayer& layer, const Pass& pass, int64_t begin, int64_t count) const {
  const Tensor x = pass.x.Rows(begin, count);
  const Tensor normed = pass.normed.Rows(0, count);
  const Tensor gate_up = pass.gate_up.Rows(0, count);
  const Tensor ffn = pass.ffn.Rows(0, count);
  RUNAHEAD_RETURN_IF_ERROR(
      device_->Linear(pass.stream, pass.attended.Rows(begin, count), layer.output, pass.accumulate, x));
  RUNAHEAD_RETURN_IF_ERROR(device_->RmsNorm(pass.stream, x, layer.ffn_norm, config_.norm_eps, normed));
  RUNAHEAD_RETURN_IF_ERROR(device_->Linear(pass.stream, normed, layer.gate_up, pass.linear, gate_up));
  RUNAHEAD_RETURN_IF_ERROR(device_->SwiGlu(pass.stream, gate_up, ffn));
  return device_->Linear(pass.stream, ffn, layer.down, pass.accumulate, x);
}

}  // namespace runahead
