#include "worker/decode/static_window_loop.h"

#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "worker/decode/step_rows.h"

namespace runahead {
namespace {

bool SeesAtMost(const Model& model, int64_t context) {
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    const int64_t window = model.attention(layer).window;
    if (window == 0 || window > context) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StaticWindowLoop>> StaticWindowLoop::Create(const Model& model, Device& device,
                                                                           const KvStore& store, Stream& stream,
                                                                           const StaticWindowOptions& options) {
  if (store.options().quantisation.has_value() || options.max_rows < 1) {
    return absl::InvalidArgumentError("static windows are of one sequence or more over a store of KV as it is");
  }
  if (options.in_codes && !device.host_reads_device_memory()) {
    return absl::InvalidArgumentError(
        "static windows in 8 bits are for devices that compute in the memory of the host");
  }
  const int64_t rows = options.max_rows * options.size.reserve;
  if (rows > std::numeric_limits<int32_t>::max()) {  // as many as a table may number
    return absl::InvalidArgumentError(
        absl::StrFormat("static windows of %d rows for %d sequences: more than a device can number",
                        options.size.reserve, options.max_rows));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<WindowRows> memory,
                            options.in_codes ? MakeCodedWindowRows(model, device, stream, options)
                                             : MakePlainWindowRows(model, device, stream, options));
  return std::unique_ptr<StaticWindowLoop>(
      new StaticWindowLoop(model, device, store, stream, options, std::move(memory)));
}

StaticWindowLoop::StaticWindowLoop(const Model& model, Device& device, const KvStore& store, Stream& stream,
                                   const StaticWindowOptions& options, std::unique_ptr<WindowRows> rows)
    : model_(model),
      device_(device),
      store_(store),
      stream_(stream),
      size_(options.size),
      slots_(options.max_rows),
      windowed_(SeesAtMost(model, options.size.context)),
      rows_(std::move(rows)),
      own_(device),
      shared_(device) {
  for (int64_t slot = slots_; slot-- > 0;) free_slots_.push_back(slot);
}

absl::StatusOr<Tensor> StaticWindowLoop::Step(absl::Span<const DecodeRow> rows) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<SequenceRows> sequences, BySequence(rows));
  for (const SequenceRows& own : sequences) {
    if (own.count() == 1) continue;
    return absl::UnimplementedError(
        absl::StrFormat("a step of %d rows of one sequence, and static windows (static_window) take one at a time: a "
                        "window that several append to would no more hold all that the first of them sees",
                        own.count()));
  }
  ForwardBatch batch;
  batch.batch_invariant = true;
  batch.logit_rows = LogitRows(rows);
  batch.kv.page_tokens = 1;  // a window begins at any row
  rows_->BeginStep();
  for (const DecodeRow& row : rows) {
    RUNAHEAD_ASSIGN_OR_RETURN(const HeldWindow held, Place(row));
    batch.ids.push_back(row.token);
    batch.kv.sequences.push_back({.queries = 1,
                                  .length = held.window.length(),
                                  .first_page = static_cast<int64_t>(batch.kv.pages.size()),
                                  .end = held.window.length()});
    rows_->Add(held, batch.kv);
  }
  LayerPass pass(model_, device_, stream_, {own_, shared_}, std::move(batch));
  RUNAHEAD_RETURN_IF_ERROR(pass.Begin());
  for (int64_t layer = 0; layer < model_.config().layers; ++layer) {
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef kv, rows_->Open(layer));
    RUNAHEAD_RETURN_IF_ERROR(pass.Project(layer, kv));
    RUNAHEAD_RETURN_IF_ERROR(rows_->Keep(layer));
    RUNAHEAD_RETURN_IF_ERROR(pass.Attend(layer, kv));
  }
  return pass.Logits();
}

// A step that failed is tried again in halves: then the position is the window's last one already, and its row is
// written again.
absl::StatusOr<HeldWindow> StaticWindowLoop::Place(const DecodeRow& row) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTokens(row.position + 1));
  auto it = held_.find(row.sequence);
  if (it == held_.end()) {
    if (free_slots_.empty()) {
      return absl::ResourceExhaustedError(absl::StrFormat("there are static windows for %d sequences", slots_));
    }
    const HeldWindow fresh{free_slots_.back(), StaticWindow(size_, row.position)};
    RUNAHEAD_RETURN_IF_ERROR(rows_->Load(store_, *row.sequence, fresh));
    free_slots_.pop_back();
    it = held_.emplace(row.sequence, fresh).first;
  }
  HeldWindow& held = it->second;
  if (held.window.length() == row.position + 1) return held;
  if (held.window.length() != row.position) {
    return absl::FailedPreconditionError(
        absl::StrFormat("position %d of a sequence whose static window has %d", row.position, held.window.length()));
  }
  StaticWindow next = held.window;
  RUNAHEAD_RETURN_IF_ERROR(rows_->Move(held.slot, next.Append().move));
  held.window = next;
  return held;
}

absl::Status StaticWindowLoop::CheckTokens(int64_t tokens) const {
  if (windowed_ || tokens <= size_.context) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrFormat(
      "%d tokens of prompt and output, and this worker decodes over static windows for %d: ask for fewer, or give it a "
      "static_window of at least %d; only models whose attention sees no more than the window go on beyond it",
      tokens, size_.context, tokens));
}

void StaticWindowLoop::Leave(const KvStore::Sequence& sequence) {
  const auto it = held_.find(&sequence);
  if (it == held_.end()) return;
  free_slots_.push_back(it->second.slot);
  held_.erase(it);
}

}  // namespace runahead
