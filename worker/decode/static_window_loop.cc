#include "worker/decode/static_window_loop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

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
  const int64_t rows = options.max_rows * options.size.reserve;
  if (rows > std::numeric_limits<int32_t>::max()) {  // as many as a table may number
    return absl::InvalidArgumentError(
        absl::StrFormat("static windows of %d rows for %d sequences: more than a device can number",
                        options.size.reserve, options.max_rows));
  }
  const int64_t bytes = model.config().layers * rows * model.kv_row_bytes();
  absl::StatusOr<std::shared_ptr<Buffer>> memory = device.Allocate(static_cast<size_t>(bytes), MemoryKind::kDevice);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(), absl::StrFormat("static windows of %d sequences take %d bytes: %s",
                                                                options.max_rows, bytes, memory.status().message()));
  }
  return std::unique_ptr<StaticWindowLoop>(
      new StaticWindowLoop(model, device, store, stream, options, *std::move(memory)));
}

StaticWindowLoop::StaticWindowLoop(const Model& model, Device& device, const KvStore& store, Stream& stream,
                                   const StaticWindowOptions& options, std::shared_ptr<Buffer> memory)
    : model_(model),
      device_(device),
      store_(store),
      stream_(stream),
      size_(options.size),
      slots_(options.max_rows),
      row_bytes_(model.kv_row_bytes()),
      windowed_(SeesAtMost(model, options.size.context)),
      memory_(std::move(memory)),
      own_(device),
      shared_(device) {
  for (int64_t slot = slots_; slot-- > 0;) free_slots_.push_back(slot);
}

absl::StatusOr<Tensor> StaticWindowLoop::Step(absl::Span<const DecodeRow> rows) {
  ForwardBatch batch;
  batch.batch_invariant = true;
  batch.kv.page_tokens = 1;  // a window begins at any row
  for (const DecodeRow& row : rows) {
    RUNAHEAD_ASSIGN_OR_RETURN(const Held held, Place(row));
    batch.logit_rows.push_back(static_cast<int64_t>(batch.ids.size()));
    batch.ids.push_back(row.token);
    AddTo(held, batch.kv);
  }
  LayerPass pass(model_, device_, stream_, {own_, shared_}, std::move(batch));
  RUNAHEAD_RETURN_IF_ERROR(pass.Begin());
  for (int64_t layer = 0; layer < model_.config().layers; ++layer) {
    RUNAHEAD_RETURN_IF_ERROR(pass.Project(layer, Layer(layer)));
    RUNAHEAD_RETURN_IF_ERROR(pass.Attend(layer, Layer(layer)));
  }
  return pass.Logits();
}

// A step that failed is tried again in halves: then the position is the window's last one already, and its row is
// written again.
absl::StatusOr<StaticWindowLoop::Held> StaticWindowLoop::Place(const DecodeRow& row) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTokens(row.position + 1));
  auto it = held_.find(row.sequence);
  if (it == held_.end()) {
    if (free_slots_.empty()) {
      return absl::ResourceExhaustedError(absl::StrFormat("there are static windows for %d sequences", slots_));
    }
    const Held fresh{free_slots_.back(), StaticWindow(size_, row.position)};
    RUNAHEAD_RETURN_IF_ERROR(Load(*row.sequence, fresh));
    free_slots_.pop_back();
    it = held_.emplace(row.sequence, fresh).first;
  }
  Held& held = it->second;
  if (held.window.length() == row.position + 1) return held;
  if (held.window.length() != row.position) {
    return absl::FailedPreconditionError(
        absl::StrFormat("position %d of a sequence whose static window has %d", row.position, held.window.length()));
  }
  StaticWindow next = held.window;
  RUNAHEAD_RETURN_IF_ERROR(MoveRows(held.slot, next.Append().move));
  held.window = next;
  return held;
}

absl::Status StaticWindowLoop::Load(const KvStore::Sequence& sequence, const Held& held) {
  const StaticWindow& window = held.window;
  if (window.first_position() == window.length()) return absl::OkStatus();
  for (int64_t layer = 0; layer < model_.config().layers; ++layer) {
    int64_t row = window.RowOf(window.first_position());
    for (const KvSpan& span :
         store_.arena().Spans(sequence.blocks(), layer, window.first_position(), window.length())) {
      RUNAHEAD_RETURN_IF_ERROR(device_.Copy(stream_, span.rows, Rows(layer, held.slot, row, span.tokens)));
      row += span.tokens;
    }
  }
  return absl::OkStatus();
}

// In pieces that do not overlap with where they go.
absl::Status StaticWindowLoop::MoveRows(int64_t slot, const StaticWindow::Move& move) {
  const int64_t most = move.from - move.to;
  for (int64_t layer = 0; layer < model_.config().layers; ++layer) {
    for (int64_t done = 0; done < move.rows; done += most) {
      const int64_t rows = std::min(most, move.rows - done);
      RUNAHEAD_RETURN_IF_ERROR(
          device_.Copy(stream_, Rows(layer, slot, move.from + done, rows), Rows(layer, slot, move.to + done, rows)));
    }
  }
  return absl::OkStatus();
}

// All positions, as plain decode has them, so that they are cut into the same pieces. Those that have left the window,
// which no query sees, are said to lie in the slot's first row.
void StaticWindowLoop::AddTo(const Held& held, KvLayout& layout) const {
  const StaticWindow& window = held.window;
  const int64_t first_row = held.slot * size_.reserve, first = window.first_attended();
  layout.sequences.push_back({.queries = 1,
                              .length = window.length(),
                              .first_page = static_cast<int64_t>(layout.pages.size()),
                              .end = window.length()});
  layout.pages.insert(layout.pages.end(), static_cast<size_t>(first), static_cast<int32_t>(first_row));
  auto row = static_cast<int32_t>(first_row + window.RowOf(first));
  for (int64_t at = first; at < window.length(); ++at) layout.pages.push_back(row++);
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

BufferRef StaticWindowLoop::Layer(int64_t layer) const {
  const auto bytes = static_cast<size_t>(slots_ * size_.reserve * row_bytes_);
  return {memory_, static_cast<size_t>(layer) * bytes, bytes};
}

BufferRef StaticWindowLoop::Rows(int64_t layer, int64_t slot, int64_t begin, int64_t count) const {
  return Layer(layer).Slice(static_cast<size_t>((slot * size_.reserve + begin) * row_bytes_),
                            static_cast<size_t>(count * row_bytes_));
}

}  // namespace runahead
