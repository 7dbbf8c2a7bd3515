#include "worker/decode/decode_loop.h"

#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/decode/step_rows.h"

namespace runahead {
namespace {

// Each sequence with the blocks that it has filled, those of its new rows included.
absl::StatusOr<ForwardBatch> BatchOf(absl::Span<const DecodeRow> rows, RowKind kind) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<SequenceRows> sequences, BySequence(rows));
  ForwardBatch batch;
  batch.batch_invariant = kind == RowKind::kOutput;
  batch.logit_rows = LogitRows(rows);
  batch.kv.page_tokens = kKvBlockTokens;
  (kind == RowKind::kOutput ? batch.kv.by_pieces : batch.kv.of_prompts) = true;
  for (const DecodeRow& row : rows) batch.ids.push_back(row.token);
  for (const SequenceRows& own : sequences) {
    const auto blocks = own.sequence().blocks().first(KvBlocksFor(own.length()));
    batch.kv.sequences.push_back({.queries = own.count(),
                                  .length = own.length(),
                                  .first_page = static_cast<int64_t>(batch.kv.pages.size()),
                                  .end = own.length()});
    batch.kv.pages.insert(batch.kv.pages.end(), blocks.begin(), blocks.end());
  }
  return batch;
}

}  // namespace

DecodeLoop::DecodeLoop(const Model& model, Device& device, const KvStore& store, Stream& stream, RowKind kind)
    : model_(model), device_(device), store_(store), stream_(stream), kind_(kind), own_(device), shared_(device) {}

absl::StatusOr<Tensor> DecodeLoop::Step(absl::Span<const DecodeRow> rows) {
  RUNAHEAD_ASSIGN_OR_RETURN(ForwardBatch batch, BatchOf(rows, kind_));
  LayerPass pass(model_, device_, stream_, {own_, shared_}, std::move(batch));
  RUNAHEAD_RETURN_IF_ERROR(pass.Begin());
  for (int64_t layer = 0; layer < model_.config().layers; ++layer) {
    RUNAHEAD_RETURN_IF_ERROR(pass.Project(layer, store_.arena().Layer(layer)));
    RUNAHEAD_RETURN_IF_ERROR(pass.Attend(layer, store_.arena().Layer(layer)));
  }
  return pass.Logits();
}

}  // namespace runahead
