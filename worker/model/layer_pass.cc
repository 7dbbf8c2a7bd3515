#include "worker/model/layer_pass.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Slots of PassMemory::own. The rows that are kept are gathered from others, so they need memory apart.
enum OwnSlot { kX, kQ, kKeptX, kKeptQ, kLogits };
// Of PassMemory::shared, behind those of the sections.
enum SharedSlot { kAttended = SectionRows::kScratchSlots, kPartials, kNormedRows };

// What the table's query rows `wanted`, which rise, attend over. Each is a sequence of its own, by pieces, also of a
// prompt; where several may be of one, those that follow each other stay together, so that their KV is read once.
KvLayout LayoutOf(const KvLayout& layout, absl::Span<const int32_t> wanted) {
  KvLayout kept{layout.page_tokens, layout.pages, {}, layout.by_pieces};
  size_t next = 0;
  int64_t first = 0;  // row of the sequence
  for (const KvSequence& sequence : layout.sequences) {
    const size_t begin = next;
    for (; next < wanted.size() && wanted[next] < first + sequence.queries; ++next) {
      const int64_t length = sequence.length - sequence.queries + 1 + wanted[next] - first;
      if (layout.by_pieces && next > begin && wanted[next] == wanted[next - 1] + 1) {
        KvSequence& last = kept.sequences.back();
        ++last.queries;
        last.length = length;
        last.end = std::min(sequence.end, length);
      } else {
        kept.sequences.push_back({.queries = 1,
                                  .length = length,
                                  .first_page = sequence.first_page,
                                  .begin = sequence.begin,
                                  .end = std::min(sequence.end, length)});
      }
    }
    first += sequence.queries;
  }
  return kept;
}

}  // namespace

LayerPass::LayerPass(const Model& model, Device& device, Stream& stream, PassMemory memory, ForwardBatch batch)
    : model_(model), device_(device), stream_(stream), memory_(memory), batch_(std::move(batch)) {}

absl::Status LayerPass::Check() const {
  const ModelConfig& config = model_.config();
  for (int64_t row = 0; row < rows(); ++row) {
    if (batch_.ids[row] < 0 || batch_.ids[row] >= config.vocab) {
      return absl::OutOfRangeError(
          absl::StrCat("row ", row, ": token ", batch_.ids[row], " is not in a vocabulary of ", config.vocab));
    }
  }
  int64_t queries = 0;
  for (const KvSequence& sequence : batch_.kv.sequences) {
    queries += sequence.queries;
    if (sequence.length > config.context_length) {
      return absl::OutOfRangeError(
          absl::StrCat("a sequence of ", sequence.length, " does not fit a context of ", config.context_length));
    }
  }
  if (rows() == 0 || queries != rows()) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", rows(), " rows and ", queries, " positions"));
  }
  for (int64_t row : batch_.logit_rows) {
    if (row < 0 || row >= rows()) {
      return absl::OutOfRangeError(absl::StrCat("logits asked for row ", row, " of ", rows()));
    }
  }
  return absl::OkStatus();
}

SectionRows LayerPass::Rows(int64_t begin, int64_t count) const {
  return {stream_, memory_.shared, *table_, begin, count, batch_.batch_invariant, matrices_};
}

absl::Status LayerPass::Begin() {
  RUNAHEAD_RETURN_IF_ERROR(Check());
  const ModelConfig& config = model_.config();
  const DType act = ActivationDType(device_, batch_.batch_invariant);
  RUNAHEAD_ASSIGN_OR_RETURN(table_, device_.MakeKvTable(stream_, std::move(batch_.kv)));
  RUNAHEAD_ASSIGN_OR_RETURN(x_, memory_.own.Get(kX, DType::kF32, rows(), config.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(q_, memory_.own.Get(kQ, act, rows(), config.heads * config.head_dim));
  return model_.Embed(Rows(0, rows()), batch_.ids, x_);
}

// In chunks that are as long as Linear likes best.
absl::Status LayerPass::Project(int64_t layer, const BufferRef& kv, const XRows& x) {
  const int64_t chunk = device_.gemm_rows();
  for (int64_t begin = 0; begin < rows(); begin += chunk) {
    const int64_t count = std::min(chunk, rows() - begin);
    RUNAHEAD_RETURN_IF_ERROR(ProjectRows(layer, begin, count, x, {.q = q_.Rows(begin, count), .kv = kv}));
  }
  return absl::OkStatus();
}

// What is quantised is what the product reads.
absl::Status LayerPass::ProjectRows(int64_t layer, int64_t begin, int64_t count, const XRows& x, Projection to) {
  const Tensor residual = x_.Rows(begin, count);
  if (!x.wanted()) return model_.Project(Rows(begin, count), layer, residual, to);
  const XRows rows = x.Rows(begin, count);
  if (!IsQuantised(x.form)) {
    to.normed = rows.tensor(count);
    return model_.Project(Rows(begin, count), layer, residual, to);
  }
  const DType read = ActivationDType(device_, batch_.batch_invariant);
  RUNAHEAD_ASSIGN_OR_RETURN(to.normed, memory_.shared.Get(kNormedRows, read, count, x.hidden));
  RUNAHEAD_RETURN_IF_ERROR(model_.Project(Rows(begin, count), layer, residual, to));
  return device_.QuantizeKv(stream_, to.normed, QuantOf(x.form), rows.ref);
}

absl::Status LayerPass::Attend(int64_t layer, const BufferRef& kv, const std::function<void()>& attended) {
  // Of a prompt's last rows always, so that the last layer computes a wanted row in one way, whatever is beside it. A
  // prompt of which all rows are wanted goes on as before.
  const KvLayout& layout = table_->layout();
  const bool all_wanted = static_cast<int64_t>(batch_.logit_rows.size()) == rows();
  const bool last_rows = layout.of_prompts && static_cast<int64_t>(layout.sequences.size()) == rows();
  if (layer + 1 == model_.config().layers && (!all_wanted || last_rows)) {
    if (batch_.logit_rows.empty()) return absl::OkStatus();
    RUNAHEAD_RETURN_IF_ERROR(KeepWanted());
  }
  if (table_->layout().has_pieces()) {
    RUNAHEAD_RETURN_IF_ERROR(AttendPieces(layer, *table_, kv));
    if (attended) attended();
    return Finish(layer);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor result, memory_.shared.Get(kAttended, q_.dtype, rows(), q_.cols));
  RUNAHEAD_RETURN_IF_ERROR(device_.Attention(stream_, q_, model_.attention(layer), *table_, kv, result));
  if (attended) attended();
  return FinishChunks(layer, result);
}

absl::Status LayerPass::ProjectQkv(int64_t layer, const MutTensor& qkv, const XRows& x) {
  const int64_t chunk = device_.gemm_rows();
  for (int64_t begin = 0; begin < rows(); begin += chunk) {
    const int64_t count = std::min(chunk, rows() - begin);
    RUNAHEAD_RETURN_IF_ERROR(ProjectRows(layer, begin, count, x, {.qkv = qkv.Rows(begin, count)}));
  }
  return absl::OkStatus();
}

absl::StatusOr<MutTensor> LayerPass::Partials(int64_t layer) {
  const AttentionShape& shape = model_.attention(layer);
  if (partials_.ref.buffer == nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(
        partials_, memory_.shared.Get(kPartials, DType::kF32, table_->pieces(), shape.heads * (shape.head_dim + 1)));
  }
  return partials_;
}

absl::Status LayerPass::AttendPieces(int64_t layer, const KvTable& table, const BufferRef& kv) {
  RUNAHEAD_ASSIGN_OR_RETURN(const MutTensor partials, Partials(layer));
  return device_.AttendPieces(stream_, q_, model_.attention(layer), table, kv, partials);
}

absl::Status LayerPass::Finish(int64_t layer) {
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor attended, memory_.shared.Get(kAttended, q_.dtype, rows(), q_.cols));
  RUNAHEAD_RETURN_IF_ERROR(
      device_.MergePieces(stream_, std::exchange(partials_, {}), model_.attention(layer), *table_, attended));
  return FinishChunks(layer, attended);
}

absl::Status LayerPass::FinishChunks(int64_t layer, const ConstTensor& attended) {
  const int64_t chunk = device_.gemm_rows();
  for (int64_t begin = 0; begin < rows(); begin += chunk) {
    const int64_t count = std::min(chunk, rows() - begin);
    RUNAHEAD_RETURN_IF_ERROR(
        model_.Finish(Rows(begin, count), layer, attended.Rows(begin, count), x_.Rows(begin, count)));
  }
  return absl::OkStatus();
}

// Leaves the wanted rows of the batch, and what attention computes for them.
absl::Status LayerPass::KeepWanted() {
  const auto count = static_cast<int64_t>(batch_.logit_rows.size());
  const std::vector<int32_t> wanted(batch_.logit_rows.begin(), batch_.logit_rows.end());
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor x, memory_.own.Get(kKeptX, x_.dtype, count, x_.cols));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor q, memory_.own.Get(kKeptQ, q_.dtype, count, q_.cols));
  RUNAHEAD_RETURN_IF_ERROR(device_.GatherRows(stream_, x_, wanted, x));
  RUNAHEAD_RETURN_IF_ERROR(device_.GatherRows(stream_, q_, wanted, q));
  x_ = x;
  q_ = q;
  for (int64_t row = 0; row < count; ++row) {
    batch_.ids[row] = batch_.ids[wanted[row]];
    batch_.logit_rows[row] = row;
  }
  batch_.ids.resize(count);
  RUNAHEAD_ASSIGN_OR_RETURN(table_, device_.MakeKvTable(stream_, LayoutOf(table_->layout(), wanted)));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> LayerPass::Logits() {
  return LogitsOf(batch_.scored_rows, static_cast<int64_t>(batch_.logit_rows.size()) - batch_.scored_rows);
}

absl::StatusOr<Tensor> LayerPass::LogitsOf(int64_t first, int64_t count) {
  if (count == 0) return Tensor{};
  if (static_cast<int64_t>(batch_.logit_rows.size()) < rows()) RUNAHEAD_RETURN_IF_ERROR(KeepWanted());
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor logits, memory_.own.Get(kLogits, DType::kF32, count, model_.config().vocab));
  RUNAHEAD_RETURN_IF_ERROR(model_.Logits(Rows(first, count), x_.Rows(first, count), logits));
  return logits;
}

}  // namespace runahead
