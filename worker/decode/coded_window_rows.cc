// Rows in codes of 8 bits, by one scale and zero for K and one for V of each layer and sequence, which its prompt
// fixes. Ops read KV in the model's dtype: a step decodes each layer's rows to a place that all layers share. A new row
// is read as its codes say from its own step on, so that attention never sees a row as something else than it saw it
// before.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/base/status_macros.h"
#include "worker/decode/window_memory.h"
#include "worker/decode/window_rows.h"
#include "worker/kv/static_quantisation.h"

namespace runahead {
namespace {

template <typename T>
void LoadAll(const std::byte* from, absl::Span<float> to) {
  const T* values = reinterpret_cast<const T*>(from);
  for (size_t i = 0; i < to.size(); ++i) to[i] = ToFloat(values[i]);
}

void LoadRows(const std::byte* from, DType dtype, absl::Span<float> to) {
  switch (dtype) {
    case DType::kF32:
      std::copy_n(reinterpret_cast<const float*>(from), to.size(), to.begin());
      return;
    case DType::kBF16:
      return LoadAll<BFloat16>(from, to);
    case DType::kF16:
      return LoadAll<Float16>(from, to);
  }
}

void StoreRows(absl::Span<const float> from, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::kF32:
      std::copy(from.begin(), from.end(), reinterpret_cast<float*>(to));
      return;
    case DType::kBF16:
      std::transform(from.begin(), from.end(), reinterpret_cast<BFloat16*>(to), ToBFloat16);
      return;
    case DType::kF16:
      std::transform(from.begin(), from.end(), reinterpret_cast<Float16*>(to), ToFloat16);
      return;
  }
}

class CodedWindowRows final : public WindowRows {
 public:
  CodedWindowRows(const Model& model, Device& device, Stream& stream, const StaticWindowOptions& options,
                  WindowMemory codes, std::shared_ptr<Buffer> opened)
      : device_(device),
        stream_(stream),
        on_saturated_(options.on_saturated),
        context_(options.size.context),
        values_(codes.shape().row_bytes),
        row_bytes_(model.kv_row_bytes()),
        dtype_(model.kv_dtype()),
        codes_(std::move(codes)),
        opened_(std::move(opened)) {
    for (int64_t slot = 0; slot < options.max_rows; ++slot) scales_.emplace_back(0, values_ / 2);
  }

  // At once, so that what cannot be quantised is an error: once the stream has run what it was given.
  absl::Status Load(const KvStore& store, const KvStore::Sequence& sequence, const HeldWindow& held) override {
    RUNAHEAD_RETURN_IF_ERROR(device_.Record(stream_).Wait());
    const StaticWindow& window = held.window;
    const int64_t layers = codes_.shape().layers, count = window.length() - window.first_position();
    StaticQuantisation scales(layers, values_ / 2);
    std::vector<float> rows(static_cast<size_t>(count * values_));
    for (int64_t layer = 0; layer < layers; ++layer) {
      int64_t at = 0;
      for (const KvSpan& span :
           store.arena().Spans(sequence.blocks(), layer, window.first_position(), window.length())) {
        LoadRows(span.rows.data(), dtype_, absl::MakeSpan(rows).subspan(at * values_, span.tokens * values_));
        at += span.tokens;
      }
      RUNAHEAD_RETURN_IF_ERROR(scales.Fix(layer, rows));
      scales.Quantise(layer, rows, Codes(layer, held.slot, window.RowOf(window.first_position()), count));
    }
    scales_[static_cast<size_t>(held.slot)] = std::move(scales);
    return absl::OkStatus();
  }

  absl::Status Move(int64_t slot, const StaticWindow::Move& move) override { return codes_.Move(stream_, slot, move); }

  void BeginStep() override { placed_.clear(); }

  // A sequence's rows are opened one behind the other, from one place for each sequence of the step on.
  void Add(const HeldWindow& held, KvLayout& layout) override {
    const StaticWindow& window = held.window;
    const int64_t begin = static_cast<int64_t>(placed_.size()) * context_, first = window.first_attended();
    layout.pages.insert(layout.pages.end(), static_cast<size_t>(first), static_cast<int32_t>(begin));
    const Placed placed{held.slot, window.RowOf(first), window.length() - first, begin};
    for (int64_t i = 0; i < placed.count; ++i) layout.pages.push_back(static_cast<int32_t>(begin + i));
    placed_.push_back(placed);
  }

  absl::StatusOr<BufferRef> Open(int64_t layer) override {
    device_.Call(stream_, [this, layer, placed = placed_] {
      for (const Placed& one : placed) OpenRows(layer, one, 0, one.count - 1);
    });
    return BufferRef::Whole(opened_);
  }

  absl::Status Keep(int64_t layer) override {
    device_.Call(stream_, [this, layer, placed = placed_] {
      for (const Placed& one : placed) KeepRow(layer, one);
    });
    return absl::OkStatus();
  }

  int64_t bytes() const override { return codes_.bytes() + static_cast<int64_t>(opened_->size()); }

 private:
  // A sequence of the step: rows [row, row + count) of its slot, the last of which is new, and where they are opened.
  struct Placed {
    int64_t slot = 0, row = 0, count = 0, begin = 0;
  };

  absl::Span<uint8_t> Codes(int64_t layer, int64_t slot, int64_t row, int64_t count) const {
    const BufferRef rows = codes_.Rows(layer, slot, row, count);
    return {reinterpret_cast<uint8_t*>(rows.data()), rows.size};
  }
  std::byte* Opened(int64_t row) const { return opened_->data() + row * row_bytes_; }

  // On the stream: its rows [first, first + count).
  void OpenRows(int64_t layer, const Placed& one, int64_t first, int64_t count) {
    work_.resize(static_cast<size_t>(count * values_));
    scales_[static_cast<size_t>(one.slot)].Dequantise(layer, Codes(layer, one.slot, one.row + first, count),
                                                      absl::MakeSpan(work_));
    StoreRows(work_, dtype_, Opened(one.begin + first));
  }

  // On the stream.
  void KeepRow(int64_t layer, const Placed& one) {
    const int64_t last = one.count - 1;
    StaticQuantisation& scales = scales_[static_cast<size_t>(one.slot)];
    const int64_t before = scales.saturated();
    work_.resize(static_cast<size_t>(values_));
    LoadRows(Opened(one.begin + last), dtype_, absl::MakeSpan(work_));
    scales.Quantise(layer, work_, Codes(layer, one.slot, one.row + last, 1));
    if (const int64_t more = scales.saturated() - before; more > 0 && on_saturated_) on_saturated_(more);
    OpenRows(layer, one, last, 1);
  }

  Device& device_;
  Stream& stream_;
  const std::function<void(int64_t)> on_saturated_;
  const int64_t context_;
  const int64_t values_;     // of a row: K and V
  const int64_t row_bytes_;  // in dtype_
  const DType dtype_;
  const WindowMemory codes_;
  const std::shared_ptr<Buffer> opened_;    // [slots][context][row_bytes], of one layer
  std::vector<Placed> placed_;              // of the step that is enqueued
  std::vector<StaticQuantisation> scales_;  // by slot; used on the stream once their sequence takes part in a step
  std::vector<float> work_;                 // on the stream
};

}  // namespace

absl::StatusOr<std::unique_ptr<WindowRows>> MakeCodedWindowRows(const Model& model, Device& device, Stream& stream,
                                                                const StaticWindowOptions& options) {
  const int64_t values = model.kv_row_bytes() / static_cast<int64_t>(DTypeSize(model.kv_dtype()));
  RUNAHEAD_ASSIGN_OR_RETURN(WindowMemory codes, WindowMemory::Allocate(device, {model.config().layers, options.max_rows,
                                                                                options.size.reserve, values}));
  RUNAHEAD_ASSIGN_OR_RETURN(
      const WindowMemory opened,
      WindowMemory::Allocate(device, {1, options.max_rows, options.size.context, model.kv_row_bytes()}));
  return std::make_unique<CodedWindowRows>(model, device, stream, options, std::move(codes), opened.Layer(0).buffer);
}

}  // namespace runahead
