// Which decode worker takes a request. Pure: load is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace runahead {

// A decode worker as the router sees it.
struct DecodeView {
  bool ready = false;
  int64_t capacity_tokens = 0;  // KV that the empty store holds
  int64_t reserved_tokens = 0;  // of it, what the router's leases have taken
  int leases = 0;
};

// Indices of the workers to ask for a lease of `tokens` (prompt + max_tokens), the best first: most free memory, then
// fewest leases, then the first in the list. A worker that looks full is listed too, last: only it knows.
// UNAVAILABLE when none is ready; OUT_OF_RANGE, naming both sizes, when no empty store could hold it.
absl::StatusOr<std::vector<size_t>> RankDecodeWorkers(int64_t tokens, absl::Span<const DecodeView> workers);

}  // namespace runahead
