// Attention of the host's CPU over KV in host memory, as the host lane makes it and its profile measures it.
#pragma once

#include "absl/status/status.h"
#include "kernels/base/device.h"

namespace runahead {

// The CPU device that computes it, on `stream`.
struct HostAttention {
  Device& host;
  Stream& stream;
  // Where host memory is to seem slower than it is: gigabits of KV a second that attention reads at most; 0: as fast as
  // it goes.
  double emulated_gbps = 0;

  // Enqueues AttendPieces over `layer`, all in host memory.
  absl::Status Enqueue(const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                       const ConstBufferRef& layer, const MutTensor& partials) const;
};

}  // namespace runahead
