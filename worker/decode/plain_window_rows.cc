// Rows as they are computed: the ops read and write the windows themselves.
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/decode/window_memory.h"
#include "worker/decode/window_rows.h"

namespace runahead {
namespace {

class PlainWindowRows final : public WindowRows {
 public:
  PlainWindowRows(Device& device, Stream& stream, WindowMemory memory)
      : device_(device), stream_(stream), memory_(std::move(memory)) {}

  absl::Status Load(const KvStore& store, const KvStore::Sequence& sequence, const HeldWindow& held) override {
    const StaticWindow& window = held.window;
    for (int64_t layer = 0; layer < memory_.shape().layers; ++layer) {
      int64_t row = window.RowOf(window.first_position());
      for (const KvSpan& span :
           store.arena().Spans(sequence.blocks(), layer, window.first_position(), window.length())) {
        RUNAHEAD_RETURN_IF_ERROR(device_.Copy(stream_, span.rows, memory_.Rows(layer, held.slot, row, span.tokens)));
        row += span.tokens;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Move(int64_t slot, const StaticWindow::Move& move) override { return memory_.Move(stream_, slot, move); }

  // Positions that have left the window are said to lie in the slot's first row.
  void Add(const HeldWindow& held, KvLayout& layout) override {
    const StaticWindow& window = held.window;
    const int64_t first_row = held.slot * memory_.shape().reserve, first = window.first_attended();
    layout.pages.insert(layout.pages.end(), static_cast<size_t>(first), static_cast<int32_t>(first_row));
    auto row = static_cast<int32_t>(first_row + window.RowOf(first));
    for (int64_t at = first; at < window.length(); ++at) layout.pages.push_back(row++);
  }

  absl::StatusOr<BufferRef> Open(int64_t layer) override { return memory_.Layer(layer); }
  absl::Status Keep(int64_t) override { return absl::OkStatus(); }
  int64_t bytes() const override { return memory_.bytes(); }

 private:
  Device& device_;
  Stream& stream_;
  const WindowMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WindowRows>> MakePlainWindowRows(const Model& model, Device& device, Stream& stream,
                                                                const StaticWindowOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(WindowMemory memory,
                            WindowMemory::Allocate(device, {model.config().layers, options.max_rows,
                                                            options.size.reserve, model.kv_row_bytes()}));
  return std::make_unique<PlainWindowRows>(device, stream, std::move(memory));
}

}  // namespace runahead
