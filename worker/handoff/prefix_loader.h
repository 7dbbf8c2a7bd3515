// KV before a chain's first part: the chain's head gets it from the decode worker's store, layer by layer.
#pragma once

#include "kernels/base/buffer.h"
#include "kernels/base/event.h"
#include "worker/handoff/handoff.h"

namespace runahead {

// Thread-safe. Implementations: over the links' message engine, in-process.
class PrefixLoader {
 public:
  virtual ~PrefixLoader() = default;
  // Fills `into` with the rows of KV that `rows` says, that the lease of `decode` began with
  // (KvStore::LendKnown); `into` has place for just these, one row after the other. Fires when they are there, or with
  // an error: nothing is written to `into` any more. Errors: NOT_FOUND (no lease), OUT_OF_RANGE (it began with fewer),
  // FAILED_PRECONDITION (another form, or rows of the layer are being loaded already), DATA_LOSS (they came damaged
  // kTransferAttempts times), UNAVAILABLE (peer gone), RESOURCE_EXHAUSTED (no memory here to bring them into the
  // device), CANCELLED (Drop).
  virtual Event Load(const PeerId& decode, const Slice& rows, BufferRef into) = 0;
  // What is loaded of `lease` now fires CANCELLED: at once, or when what is on the wire to its place has come.
  virtual void Drop(const LeaseId& lease) = 0;
};

}  // namespace runahead
