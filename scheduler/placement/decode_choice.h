// Which decode worker takes a request. Pure: load is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/capacity.h"

namespace runahead {

// A decode worker as the router sees it.
struct DecodeView {
  bool ready = false;
  int64_t capacity_tokens = kNeverReached;  // KV that the empty store holds; of one that is not ready: as last known
  int64_t reserved_tokens = 0;              // of it, what the router's leases have taken
  int leases = 0;
  int64_t kept_tokens = 0;  // of it, what is kept for requests that go first (memory_queue.h)

  // What looks free; below 0 where more is kept than is free.
  int64_t room() const { return capacity_tokens - reserved_tokens - kept_tokens; }
};

// Indices of the workers to ask for a lease of `tokens` (prompt + max_tokens), the best first: most room, then fewest
// leases, then the first in the list. A worker that looks full is listed too, last, for only it knows; but not where
// room is kept for others and not as much is left beside it.
// RESOURCE_EXHAUSTED when all that could hold it keep their room for others; UNAVAILABLE when none that could hold it
// is ready; OUT_OF_RANGE, naming both sizes, when no empty store of the list could hold it, were it ready.
absl::StatusOr<std::vector<size_t>> RankDecodeWorkers(int64_t tokens, absl::Span<const DecodeView> workers);

}  // namespace runahead
