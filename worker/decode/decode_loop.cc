#include "worker/decode/decode_loop.h"

#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Each row's sequence with the blocks that it has filled, its new row included.
ForwardBatch BatchOf(absl::Span<const DecodeRow> rows) {
  ForwardBatch batch;
  batch.batch_invariant = true;
  batch.kv.page_tokens = kKvBlockTokens;
  for (const DecodeRow& row : rows) {
    const int64_t length = row.position + 1;
    const auto blocks = row.sequence->blocks().first(KvBlocksFor(length));
    batch.logit_rows.push_back(static_cast<int64_t>(batch.ids.size()));
    batch.ids.push_back(row.token);
    batch.kv.sequences.push_back(
        {.queries = 1, .length = length, .first_page = static_cast<int64_t>(batch.kv.pages.size()), .end = length});
    batch.kv.pages.insert(batch.kv.pages.end(), blocks.begin(), blocks.end());
  }
  return batch;
}

}  // namespace

DecodeLoop::DecodeLoop(const Model& model, Device& device, const KvStore& store, Stream& stream)
    : model_(model), device_(device), store_(store), stream_(stream), own_(device), shared_(device) {}

absl::StatusOr<Tensor> DecodeLoop::Step(absl::Span<const DecodeRow> rows) {
  LayerPass pass(model_, device_, stream_, {own_, shared_}, BatchOf(rows));
  RUNAHEAD_RETURN_IF_ERROR(pass.Begin());
  for (int64_t layer = 0; layer < model_.config().layers; ++layer) {
    RUNAHEAD_RETURN_IF_ERROR(pass.Project(layer, store_.arena().Layer(layer)));
    RUNAHEAD_RETURN_IF_ERROR(pass.Attend(layer, store_.arena().Layer(layer)));
  }
  return pass.Logits();
}

}  // namespace runahead
