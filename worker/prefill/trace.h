// What happens inside a stage, in order: for tests that prove overlap. What people are shown is JobTrace's to make.
#pragma once

#include <cstdint>

#include "worker/link/edge.h"

namespace runahead {

enum class TracePoint {
  kReceivePosted,   // receives of the layer are posted (chain)
  kReceived,        // a piece of the layer is whole
  kForwarded,       // a received piece went on to the next neighbour
  kQkvBegin,        // on the compute stream: QKV of the own part starts
  kQkvEnd,          // on the compute stream
  kSendPosted,      // the own slice goes to a neighbour
  kSent,            // the neighbour took it: its buffer may be reused
  kAttentionBegin,  // on the compute stream: all KV of the layer is there
  kAttentionEnd,    // on the compute stream; not where the layer attends to nothing
  kLayerEnd,        // on the compute stream: attention and MLP are done
  kHandedOff,       // the decode worker has the own slice of the layer's KV
  kXHandedOff,      // and of its X, where it takes that
  kFirstToken,      // the tail has sampled
};

// Called from any thread, in the order in which things happen; must be short.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void Add(JobId job, int64_t layer, TracePoint point) = 0;
};

}  // namespace runahead
