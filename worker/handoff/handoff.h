// Hand-off: a prefill worker pushes its own slice of each layer to the decode worker's store while it computes on.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/buffer.h"
#include "kernels/base/event.h"
#include "kernels/base/row_form.h"
#include "worker/kv/arrival.h"
#include "worker/kv/lease_table.h"
#include "worker/link/edge.h"

namespace runahead {

// Tokens [begin, end) of the prompt in one layer; the bytes are dense rows, in `form`.
struct Slice {
  LeaseId lease;
  int32_t layer = 0;
  int64_t begin = 0;
  int64_t end = 0;
  SliceKind kind = SliceKind::kKv;
  RowForm form = RowForm::kF32;
};

// Thread-safe. Implementations: over the links' message engine, in-process.
class HandoffSender {
 public:
  virtual ~HandoffSender() = default;
  // Sends `bytes` to the store of `decode` once `after` has fired (with an error: nothing is sent, the event carries
  // it). Fires OK when the receiver has ACCEPTED the slice: `bytes` may be reused. Errors: DATA_LOSS after three
  // CORRUPT answers, NOT_FOUND (no lease), OUT_OF_RANGE (bad range), FAILED_PRECONDITION (another
  // form), UNAVAILABLE (peer gone), RESOURCE_EXHAUSTED (no memory here to bring it out of the device), CANCELLED.
  virtual Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) = 0;
  // Slices of `lease` not yet on the wire fire CANCELLED; those under way are awaited by their events.
  virtual void Cancel(const LeaseId& lease) = 0;
};

}  // namespace runahead
