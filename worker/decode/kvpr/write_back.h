// Writes what a step makes, K, V and X of its rows, through to the host's stores.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "worker/decode/kvpr/step_times.h"
#include "worker/kv/store.h"

namespace runahead {

// Where a row of a step goes.
struct OwnRow {
  absl::Span<const int32_t> blocks;  // of the stores; valid until the step is done
  int64_t position = 0;
  bool with_x = false;  // X of all earlier positions is stored
};

// A few layers may be on their way. Used by the decode loop's thread.
class WriteBack {
 public:
  struct Options {
    int64_t rows = 0;  // of a step, at most
    int64_t stored_row_bytes = 0, x_row_bytes = 0;
  };
  static int64_t DeviceBytes(const Options& options);
  // Device and store outlive it.
  static absl::StatusOr<std::unique_ptr<WriteBack>> Create(Device& device, const KvStore& store,
                                                           const Options& options);

  // A layer's rows on the device, in the form that the store holds, to be filled by work on the stream that waits for
  // Free(layer). X without memory where there is none.
  BufferRef Kv(int64_t layer) const { return Of(layer).kv; }
  BufferRef X(int64_t layer) const { return Of(layer).x; }
  const Event& Free(int64_t layer) const { return Of(layer).free; }

  // Enqueues the way of the layer's rows, one for each of `rows`, to the stores, behind `filled`. Fires when they are
  // there: until then the stores' memory must stay.
  absl::StatusOr<Event> Send(int64_t layer, const std::vector<OwnRow>& rows, const Event& filled,
                             const std::shared_ptr<StepTimes>& times);
  // The same of a sequence's KV from position `first` on, in `blocks`: the stored rows of `rows`, on the device.
  absl::StatusOr<Event> Save(int64_t layer, absl::Span<const int32_t> blocks, int64_t first, const BufferRef& rows,
                             const Event& filled, const std::shared_ptr<StepTimes>& times);
  // Waits for all that was sent.
  void Settle();

 private:
  struct Lane {
    BufferRef kv, x;  // on the device
    Event free;
  };
  WriteBack(Device& device, const KvStore& store, const Options& options);
  absl::Status Store(const BufferRef& from, std::vector<RowMove> rows, const KvArena& to, int64_t layer,
                     int64_t row_bytes);
  Lane& Of(int64_t layer) { return lanes_[layer % static_cast<int64_t>(lanes_.size())]; }
  const Lane& Of(int64_t layer) const { return lanes_[layer % static_cast<int64_t>(lanes_.size())]; }

  Device& device_;
  const KvStore& store_;
  const Options options_;
  const std::unique_ptr<Stream> stream_;
  std::vector<Lane> lanes_;
};

}  // namespace runahead
