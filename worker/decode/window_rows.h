// Where the rows of static windows lie (docs/static-window.md): as they are computed, or in codes of 8 bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "worker/kv/static_window.h"
#include "worker/kv/store.h"
#include "worker/model/model.h"

namespace runahead {

struct StaticWindowOptions {
  StaticWindowSize size;
  int64_t max_rows = 0;   // sequences that take part in steps before they leave
  bool in_codes = false;  // of 8 bits (worker/kv/static_quantisation.h)
  // Called with a number of values of new rows that lie outside the range of their prompt. Where rows are in codes
  // only.
  std::function<void(int64_t)> on_saturated = {};
};

// A sequence's window with its slot in the memory of all.
struct HeldWindow {
  int64_t slot = 0;
  StaticWindow window;
};

// Rows of slots 0 to max_rows - 1. A step is BeginStep, Add for each of its sequences, then for each layer in turn
// Open, the writes of new rows, Keep, and attention. Used by the thread that enqueues steps on the stream, which
// outlives it.
class WindowRows {
 public:
  virtual ~WindowRows() = default;

  // Fills a window's rows from those that its sequence has in `store`, in place of what the slot had.
  // INVALID_ARGUMENT where they are to be quantised and one is not finite.
  virtual absl::Status Load(const KvStore& store, const KvStore::Sequence& sequence, const HeldWindow& held) = 0;
  // Makes room in a slot: the window's rows in all layers.
  virtual absl::Status Move(int64_t slot, const StaticWindow::Move& move) = 0;

  virtual void BeginStep() {}
  // Appends the sequence to the step's layout, whose pages are single rows behind what Open returns: its past
  // positions, and the last one, which the step computes. Positions that have left the window, which no query sees, are
  // there too, so that plain decode and this one cut attention into the same pieces.
  virtual void Add(const HeldWindow& held, KvLayout& layout) = 0;
  // The rows that the step's ops of this layer read and write.
  virtual absl::StatusOr<BufferRef> Open(int64_t layer) = 0;
  // The step's new rows of the layer stand behind what Open returned: they are part of their windows from here on.
  virtual absl::Status Keep(int64_t layer) = 0;

  virtual int64_t bytes() const = 0;  // in all
};

// RESOURCE_EXHAUSTED where the device has no memory for them, naming its size.
absl::StatusOr<std::unique_ptr<WindowRows>> MakePlainWindowRows(const Model& model, Device& device, Stream& stream,
                                                                const StaticWindowOptions& options);
absl::StatusOr<std::unique_ptr<WindowRows>> MakeCodedWindowRows(const Model& model, Device& device, Stream& stream,
                                                                const StaticWindowOptions& options);

}  // namespace runahead
